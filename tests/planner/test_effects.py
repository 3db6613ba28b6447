"""Which changes of a graph keep its effects, and what of a captured graph is an effect."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.fx as fx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sgplan.grammar.diagnostics import Refused
from sgplan.planner import torch_api
from sgplan.planner.capture.effects import dynamo_accesses, graph_accesses
from sgplan.planner.capture.provenance import memory_names
from sgplan.planner.capture.rewrite import Rewritten, rewritten
from sgplan.planner.effects import Access, effects_of, faults, require
from sgplan.planner.facts import EffectFact
from sgplan.planner.legal import lost_effects
from sgplan.planner.program import Graph, Phase, Program, Run

aten = torch.ops.aten
INPUTS = ("x", "y")

# --- the rule, on graphs of accesses -------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> list[Access]:
    """Up to eight ops that draw, write and read two inputs and two streams."""
    found: list[Access] = []
    for place in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(("draw", "write", "read")))
        touched = draw(st.sampled_from(INPUTS))
        streams = (f"rng:{draw(st.sampled_from(('cpu', 'cuda')))}",) if kind == "draw" else ()
        writes = (touched,) if kind == "write" else ()
        reads = (touched,) if kind == "read" else ()
        found.append(Access(f"n{place}", kind, "", streams, writes, reads))
    return found


def conflict(one: Access, other: Access) -> bool:
    """Whether two accesses must keep their order, straight from the definition."""
    streams = set(one.draws) & set(other.draws)
    writes = set(one.writes) & {*other.writes, *other.reads}
    return bool(streams or writes or set(other.writes) & set(one.reads))


def keeps_order(before: Sequence[Access], after: Sequence[Access]) -> bool:
    place = {each.key: number for number, each in enumerate(after)}
    return all(
        place[one.key] < place[other.key]
        for number, one in enumerate(before)
        for other in before[number + 1 :]
        if conflict(one, other)
    )


@given(graphs(), st.randoms(use_true_random=False))
def test_a_reordering_passes_exactly_when_no_conflict_changes_places(
    graph: list[Access], random: Any
) -> None:
    after = random.sample(graph, len(graph))
    assert (not faults(graph, after)) == keeps_order(graph, after)


@given(graphs(), st.data())
def test_an_op_that_goes_is_a_fault_exactly_when_it_has_an_effect(
    graph: list[Access], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(graph))
    found = faults(graph, [each for each in graph if each is not gone])
    assert bool(found) == gone.is_effect


@given(graphs(), st.data())
def test_an_effect_that_is_there_twice_is_caught(graph: list[Access], data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(graph))
    place = data.draw(st.integers(0, len(graph)))
    twin = Access("again", source.op, "", source.draws, source.writes, source.reads)
    found = faults(graph, [*graph[:place], twin, *graph[place:]])
    if source.is_effect:
        assert found
        assert all(fault.what for fault in found)


def test_ops_without_effects_may_be_replaced_where_they_stood() -> None:
    read = Access("a", "linear", "", reads=("x",))
    write = Access("w", "add_", "", writes=("x",))
    kernel = Access("k", "kernel", "", reads=("x",))
    assert not faults([read, write], [kernel, write])
    assert faults([read, write], [write, kernel])


def test_memory_of_the_graph_may_go_with_what_is_written_to_it() -> None:
    made = Access("a", "linear", "", reads=("x",))
    write = Access("w", "relu_", "", writes=("%a",))
    kernel = Access("k", "kernel", "", reads=("x",))
    assert not faults([made, write], [kernel])
    assert faults([made, write], [made])


def test_memory_may_get_another_maker_but_no_other_input_may_be_written() -> None:
    made, kernel = Access("a", "linear", ""), Access("k", "kernel", "")
    write = Access("w", "add_", "", writes=("%a",))
    assert not faults([made, write], [kernel, Access("w", "add_", "", writes=("%k",))])
    x, y = (Access("w", "add_", "", writes=(name,)) for name in INPUTS)
    assert [fault.what for fault in faults([x], [y])] == ["changed `x` and changes `y` now"]


def test_a_call_may_be_another_op_that_does_the_same() -> None:
    """Another format chooses other kernels: of attention, of batch norm."""

    def attention(op: str, stream: str = "rng:cuda", key: str = "a") -> Access:
        return Access(f"{key}.{op}", op, "", (stream,), call=key)

    def norm(op: str, *statistics: str) -> Access:
        return Access(f"bn.{op}", op, "bn", (), statistics, call="bn")

    statistics = "bn.running_mean", "bn.running_var"
    first, second = attention("efficient"), attention("dropout", key="b")
    before = [first, norm("cudnn_batch_norm", *statistics), second]
    flash, native = attention("flash"), norm("native_batch_norm", *statistics)
    assert not faults(before, [flash, native, second])
    # Attention op by op writes what it drew into memory of its own.
    written = Access("a.bernoulli_", "bernoulli_", "", ("rng:cuda",), ("%a.empty",), call="a")
    assert not faults(before, [written, native, second])
    assert faults(before, [second, flash, native])
    assert faults(before, [native, second])
    assert faults(before, [flash, flash, native, second])
    assert faults(before, [attention("flash", "rng:cpu"), native, second])
    assert faults(before, [flash, norm("native_batch_norm", statistics[0]), second])


def test_the_error_names_pass_effect_module_and_both_orders() -> None:
    drop, noise = (
        Access(key, f"aten.{key}", f"blocks.{key}", draws=("rng:cpu",)) for key in ("a", "b")
    )
    with pytest.raises(Refused) as refused:
        require("shuffle", [drop, noise], [noise, drop])
    diagnostic = refused.value.diagnostics[0]
    assert diagnostic.code == "SG0540"
    assert "pass `shuffle`" in diagnostic.message
    assert "`aten.b` of blocks.b (rng:cpu) moved in front of `aten.a`" in diagnostic.message
    assert diagnostic.notes == (
        "before: `aten.a` of blocks.a (rng:cpu); `aten.b` of blocks.b (rng:cpu)",
        "after: `aten.b` of blocks.b (rng:cpu); `aten.a` of blocks.a (rng:cpu)",
    )


# --- FX graphs -----------------------------------------------------------------------------------

OPS: dict[str, tuple[Any, bool]] = {
    "rand": (aten.rand_like.default, True),
    "bernoulli": (aten.bernoulli.p, True),
    "relu": (aten.relu.default, False),
    "neg": (aten.neg.default, False),
    "add_": (aten.add_.Scalar, True),
    "mul_": (aten.mul_.Scalar, True),
}


@st.composite
def fx_graphs(draw: st.DrawFn) -> fx.GraphModule:
    """An ATen graph over two inputs whose ops read inputs alone, so that any order is a graph."""
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in INPUTS]
    for node in inputs:
        node.meta["val"] = torch.empty(2)
    made: list[fx.Node] = []
    for name in draw(st.lists(st.sampled_from(list(OPS)), min_size=2, max_size=7)):
        source = draw(st.sampled_from(inputs))
        arguments = (source, 2) if name.endswith("_") else (source,)
        arguments = (source, 0.5) if name == "bernoulli" else arguments
        made.append(graph.call_function(OPS[name][0], arguments))
    graph.output(tuple(made))
    return fx.GraphModule(nn.Module(), graph)


def permuted(gm: fx.GraphModule, order: Sequence[int]) -> fx.GraphModule:
    """A copy whose ops stand in another order, under the names that they had."""
    new = copy.deepcopy(gm)
    ops = [node for node in new.graph.nodes if node.op == "call_function"]
    for place in order:
        new.graph.output_node().prepend(ops[place])
    new.graph.lint()
    return new


def outcome(gm: fx.GraphModule) -> list[torch.Tensor]:
    """The values of the ops by name, and the inputs behind them."""
    torch.manual_seed(0)
    given_ = [torch.tensor([1.0, -2.0]), torch.tensor([3.0, -4.0])]
    gm.recompile()
    values = gm(*given_)
    return [*(value.clone() for value in values), *given_]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(fx_graphs(), st.randoms(use_true_random=False))
def test_an_order_that_passes_computes_the_same(gm: fx.GraphModule, random: Any) -> None:
    count = sum(node.op == "call_function" for node in gm.graph.nodes)
    after = permuted(gm, random.sample(range(count), count))
    if not faults(graph_accesses(gm.graph), graph_accesses(after.graph)):
        for one, other in zip(outcome(gm), outcome(after), strict=True):
            assert torch.equal(one, other)


# --- what Dynamo and AOTAutograd capture ----------------------------------------------------------


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def captured(
    module: nn.Module, seen: Callable[[fx.GraphModule], Any], *inputs: torch.Tensor
) -> Any:
    """What `seen` makes of a module's Dynamo graph while it is compiled."""
    found: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(seen(gm))
        return gm.forward

    torch.compile(module, backend=backend)(*inputs)
    return found[0]


class Effectful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.3)
        self.off = nn.Dropout(0.0)
        self.bn = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        h = self.bn(self.drop(self.off(self.lin(x * 2))))
        q = h[:, None]
        h = nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)[:, 0]
        x.mul_(2)
        return torch.relu_(h) + torch.randn(4)


def told(accesses: Sequence[Access]) -> list[tuple[str, str, str]]:
    return [(e.kind, e.module, e.touches) for e in effects_of(accesses)]


def effects(gm: fx.GraphModule) -> list[tuple[str, str, str]]:
    return told(dynamo_accesses(gm, memory_names(gm)))


@pytest.mark.usefixtures("dynamo")
def test_the_effects_of_a_dynamo_graph_in_order() -> None:
    assert captured(Effectful(), effects, torch.ones(3, 4)) == [
        ("mutation", "", "seen"),
        ("random", "drop", "rng:cpu"),
        ("mutation", "bn", "bn.num_batches_tracked"),
        ("mutation", "bn", "bn.running_mean"),
        ("mutation", "bn", "bn.running_var"),
        ("random", "", "rng:cpu"),
        ("mutation", "", "x"),
        ("random", "", "rng:cpu"),
    ]


@pytest.mark.usefixtures("dynamo")
def test_evaluation_has_no_effects_of_dropout_and_batch_norm() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4)).eval()
    assert captured(net, effects, torch.ones(3, 4)) == []


@pytest.mark.usefixtures("dynamo")
def test_the_effects_of_the_forward_that_autograd_makes() -> None:
    found: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        def keep(graph: fx.GraphModule, example: Any) -> Any:
            found.append(told(graph_accesses(graph.graph, (), ("w", "b", "x"))))
            return graph.forward

        torch_api.capture_only(gm, inputs, keep, keep)
        return gm.forward

    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    torch.compile(net, backend=backend)(torch.ones(3, 4))
    assert found == [[("random", "1", "rng:cpu")], []]


# --- passes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doing:
    """A pass that does one thing to a copy of the graph."""

    name: ClassVar[str] = "doing"
    change: Callable[[fx.Graph], None]
    key: str = "doing"

    def apply(self, graph: Rewritten) -> Rewritten:
        gm = copy.deepcopy(graph.gm)
        self.change(gm.graph)
        gm.recompile()
        return Rewritten(gm, graph.inputs, graph.placed)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x) * torch.tanh(x)


def calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def swap(graph: fx.Graph) -> None:
    first, second, *_ = calls(graph)
    second.append(first)


def drop(graph: fx.Graph) -> None:
    first = calls(graph)[0]
    source = first.args[0]
    assert isinstance(source, fx.Node)
    first.replace_all_uses_with(source)
    graph.erase_node(first)


def double(graph: fx.Graph) -> None:
    first = calls(graph)[0]
    with graph.inserting_after(first):
        graph.node_copy(first)


def pure(graph: fx.Graph) -> None:
    tanh = next(node for node in calls(graph) if node.target is torch.tanh)
    calls(graph)[0].prepend(tanh)
    tanh.target = torch.sin


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (swap, "of second (rng:cpu, the result of `dropout_1.empty_like`) moved in front of"),
        (drop, "of first (rng:cpu, the result of `dropout.empty_like`) vanished"),
        (double, "is there once more"),
    ],
)
def test_a_pass_that_breaks_order_is_named(change: Any, said: str) -> None:
    gm = captured(Two(), lambda gm: gm, torch.ones(3, 4))
    with pytest.raises(Refused, match="internal error in pass `doing`") as refused:
        rewritten(gm, [Doing(change)])
    assert said in refused.value.diagnostics[0].message


@pytest.mark.usefixtures("dynamo")
def test_a_pass_over_ops_without_effects_is_let_through() -> None:
    gm = captured(Two(), lambda gm: gm, torch.ones(3, 4))
    assert rewritten(gm, [Doing(pure)]).gm is not gm


# --- programs -------------------------------------------------------------------------------------

DROP, COUNT = EffectFact("random", "op", "a", "rng:cpu"), EffectFact("mutation", "op", "", "seen")
FIRST = Graph("fwd0", "model", "forward", effects=(DROP, COUNT))
SECOND = Graph("fwd1", "model", "forward", effects=(DROP,))
PURE = Graph("fwd2", "model", "forward")


def program(*graphs: Graph) -> Program:
    lines = tuple(Run(graph.name, (), ()) for graph in graphs)
    return Program(0, 1, (), "p", "0", "", graphs=tuple(graphs), phases=(Phase("forward", lines),))


def test_a_program_pass_keeps_effects_and_the_order_of_graphs_that_have_some() -> None:
    before = program(FIRST, SECOND, PURE)
    assert not list(lost_effects(before, before))
    assert not list(lost_effects(before, program(PURE, FIRST, SECOND)))
    (swapped,) = lost_effects(before, program(SECOND, FIRST, PURE))
    assert swapped == "graphs with effects ran as fwd0 fwd1, and run as fwd1 fwd0 now"
    (moved,) = lost_effects(program(FIRST), program(replace(FIRST, effects=(COUNT, DROP))))
    assert moved == "effects of `fwd0`: `op` of a (rng:cpu) became `op` (seen)"
    assert "`fwd1` is gone" in next(lost_effects(before, program(FIRST, PURE)))
