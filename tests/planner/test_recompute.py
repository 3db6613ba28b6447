"""`recompute` on real graphs: what is saved, and that the backward sees the forward's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sgplan.interpreter import ops
from sgplan.planner import torch_api
from sgplan.planner.capture.backend import Compiled, GraphCompiler, InductorRecorder
from sgplan.planner.capture.provenance import module_of
from sgplan.planner.capture.recompute import Recomputing, faults
from sgplan.planner.capture.record import record_graph
from sgplan.planner.engine_settings import inductor_settings
from sgplan.planner.facts import GraphFact, RecomputeFact
from sgplan.planner.globs import covers
from sgplan.planner.recompute import requests_of

from .build import plan

assert ops.__doc__  # imported for the op it registers

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    # torch says this of itself when Inductor is first imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
]

WIDTH = 16
EXACT = "capture { random = exact }\n"


class Block(nn.Module):
    """A transformer block with every kind of dropout: in attention, as a function, in place."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(dropout, inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, 2)
        q, k, v = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        x = x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), self.dropout)
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0, blocks: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).pow(2).mean()


class Running(nn.Module):
    """BatchNorm, dropout, and a buffer that is read before the script writes it."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2))
            for _ in range(3)
        )
        self.register_buffer("mean", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(0, 1)
        for block in self.blocks:
            x = x + block(x) * self.mean.clone()
        with torch.no_grad():
            self.mean.add_(x.mean(0))
        return x.sin().pow(2).mean()


class OwnCheckpoints(Net):
    """Every other block in a checkpoint of the script's own."""

    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        for place, block in enumerate(self.blocks):
            if place % 2:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            else:
                x = block(x)
        return self.head(x).pow(2).mean()


class Reentrant(OwnCheckpoints):
    reentrant = True


class Step:
    """One forward and backward, with what it left.

    Args:
        call: the module, or compiled code of it.
        module: whose gradients and buffers are kept.
    """

    def __init__(self, call: Callable[[Tensor], Tensor], module: nn.Module) -> None:
        self.x = torch.linspace(-1, 1, 8 * 6 * WIDTH).reshape(8, 6, WIDTH).requires_grad_()
        self.saved: dict[int, int] = {}
        live = {t.untyped_storage().data_ptr() for t in (*module.parameters(), self.x)}
        live |= {b.untyped_storage().data_ptr() for b in module.buffers()}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in live:
                self.saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        torch.manual_seed(7)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.loss = call(self.x)
        self.loss.backward()
        found = [*(p.grad for p in module.parameters()), self.x.grad]
        self.gradients = [g for g in found if g is not None]
        self.buffers = [b.clone() for b in module.buffers()]
        self.drawn_next = torch.rand(1)

    def close_to(self, other: Step, tolerance: float) -> None:
        torch.testing.assert_close(self.loss, other.loss, atol=tolerance, rtol=tolerance)
        pairs = zip(self.gradients + self.buffers, other.gradients + other.buffers, strict=True)
        for mine, its in pairs:
            torch.testing.assert_close(mine, its, atol=tolerance, rtol=tolerance)


class Planned:
    """A module compiled under a plan's `recompute` and `capture`; `runs` also trains a step."""

    def __init__(self, module: nn.Module, body: str = "", *, runs: bool = False) -> None:
        torch._dynamo.reset()
        wanted = plan(body)
        modules = tuple(name for name, _ in module.named_modules())
        again = Recomputing(requests_of(wanted, None), modules)
        settings = inductor_settings(wanted.capture_of(None), "cpu")
        self.outcomes: list[Compiled] = []
        self.computed: list[tuple[str, str]] = []

        def record(graph: fx.GraphModule, direction: Any, inputs: Any) -> GraphFact:
            if direction == "backward":  # now: Inductor's later passes replace nodes
                self.computed += [
                    (str(node.target), module_of(node, modules))
                    for node in graph.graph.nodes
                    if node.op == "call_function"
                    and node.meta.get("partitioner_tag") != "is_backward"
                ]
            return record_graph(graph, direction, "f", modules=modules)

        def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
            kind: Any = GraphCompiler if runs else InductorRecorder
            compiler = kind(record, "none", recomputing=again)
            self.outcomes.append(compiler.compile(gm, inputs, settings, None))
            return self.outcomes[-1].call

        call = torch.compile(module, backend=backend)
        self.step = Step(call, module)

    @property
    def forward(self) -> GraphFact:
        (found,) = [g for g in self.outcomes[0].graphs if g.direction == "forward"]
        return found

    @property
    def fact(self) -> RecomputeFact:
        (found,) = self.forward.recomputed
        return found

    def again(self, glob: str = "**") -> list[str]:
        """Ops of the backward that are none of its own, in these modules."""
        return [op for op, module in self.computed if covers(glob, module)]


HALF = "recompute { memory = 50% }"


# --- how much is saved ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "share", [50, *(pytest.param(each, marks=pytest.mark.slow) for each in (75, 25))]
)
def test_memory_is_a_share_of_what_is_saved_without_it(share: int) -> None:
    plain, found = Planned(Net()), Planned(Net(), f"recompute {{ memory = {share}% }}")
    assert found.forward.saved_without == plain.forward.bytes_saved
    assert 0 < found.forward.bytes_saved <= share / 100 * plain.forward.bytes_saved
    fact = found.fact
    assert (fact.clause, fact.objection) == ("recompute", "")
    assert fact.limit is not None
    assert fact.after <= fact.limit < fact.before
    assert fact.ops > 0


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_autograd_keeps_what_the_record_says_and_gradients_stay(dropout: float) -> None:
    plain = Planned(Net(dropout, 2), EXACT, runs=True)
    found = Planned(Net(dropout, 2), EXACT + HALF, runs=True)
    for each in (plain, found):
        assert sum(each.step.saved.values()) == each.forward.bytes_saved
    assert sum(found.step.saved.values()) <= 0.5 * sum(plain.step.saved.values())
    module = Net(dropout, 2)
    found.step.close_to(plain.step, 1e-6)
    found.step.close_to(Step(module, module), 1e-5)  # the same masks as in eager mode
    assert torch.equal(found.step.drawn_next, plain.step.drawn_next)


@pytest.mark.slow
@pytest.mark.parametrize("body", [HALF, 'recompute { in = "blocks.*"  every = 1modules }'])
def test_masks_of_inductors_own_generator_are_the_forwards(body: str) -> None:
    plain, found = Planned(Net(0.1, 1), runs=True), Planned(Net(0.1, 1), body, runs=True)
    found.step.close_to(plain.step, 1e-6)
    assert any("inductor_random" in op for op in found.again())  # from the seed, a second time
    assert not any("inductor_seeds" in op for op in found.again())


def test_a_share_that_cannot_be_reached_says_what_can() -> None:
    fact = Planned(Net(0.1), EXACT + "recompute { memory = 1% }").fact
    assert fact.limit is not None
    assert fact.limit < fact.after < 0.2 * fact.before


@pytest.mark.slow
def test_only_modules_of_in_are_computed_again() -> None:
    plain = Planned(Net())
    found = Planned(Net(), 'recompute { in = "blocks.1"  memory = 50% }')
    assert found.fact.after <= found.fact.before / 2
    assert found.again("blocks.1")
    for other in ("blocks.0", "blocks.2", "blocks.3"):
        assert len(found.again(other)) == len(plain.again(other))


# --- groups of modules ---------------------------------------------------------------------------


def test_of_a_group_of_modules_only_the_input_is_kept() -> None:
    found = Planned(Net(), 'recompute { in = "blocks.*"  every = 2modules }')
    activation = 8 * 6 * WIDTH * 4
    assert found.fact.before > 40 * activation
    assert found.fact.after <= 2 * activation  # of blocks.1 for blocks.2, of blocks.3 for the head
    assert {"aten.addmm.default", "aten.erf.default"} <= set(found.again("blocks.*"))


@pytest.mark.slow
def test_the_larger_the_group_the_less_is_kept() -> None:
    kept = [
        Planned(
            Net(), f'recompute {{ in = "blocks.*"  every = {count}modules }}'
        ).forward.bytes_saved
        for count in (1, 2, 4)
    ]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > kept[2]


# --- ops -----------------------------------------------------------------------------------------


def test_outputs_of_matched_ops_are_not_saved() -> None:
    found = Planned(Net(), "recompute { match = matmul }")
    assert found.fact.before > 0
    assert found.fact.after == 0
    narrow = Planned(Net(), 'recompute { match = matmul  in = "blocks.0" }')
    assert found.fact.before > narrow.fact.before > 0
    assert 0 < narrow.fact.ops < found.fact.ops


@pytest.mark.slow
def test_two_blocks_share_a_graph_by_priority() -> None:
    body = """recompute "norms" { match = norm  priority = 1 }
recompute "rest" { memory = 50% }"""
    norms, rest = Planned(Net(), body).forward.recomputed
    assert (norms.clause, rest.clause) == ("recompute.norms", "recompute.rest")
    assert (norms.after, rest.objection) == (0, "")
    assert rest.limit is not None
    assert rest.after <= rest.limit


def test_two_blocks_for_one_op_without_priority_are_found_out() -> None:
    body = 'recompute "a" { match = norm }\nrecompute "b" { in = "blocks.0"  memory = 50% }'
    _, second = Planned(Net(), body).forward.recomputed
    assert second.rival == "recompute.a"
    assert "of `blocks.0.norm`" in second.objection


# --- never the wrong numbers ---------------------------------------------------------------------


@pytest.mark.slow
def test_mutations_happen_once_and_what_was_read_before_them_stays() -> None:
    for body in (HALF, 'recompute { in = "blocks.*"  every = 1modules }'):
        found = Planned(Running(), EXACT + body, runs=True)
        assert found.fact.objection == ""
        module = Running()
        found.step.close_to(Step(module, module), 1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_a_cut_that_would_draw_twice_is_found_out(exact: bool) -> None:
    """Torch alone, with a small budget."""
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.GELU(), nn.Dropout())))
    told: list[str] = []

    def cut(joint: fx.GraphModule, inputs: Any, **given: Any) -> Any:
        halves = torch_api.min_cut(joint, inputs, 0.01, **given)
        told.extend(faults(*halves))
        return halves

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        ours = {"custom_partitioner_fn": torch_api.partitioner(cut, "alone")}
        with torch_api.functorch_config(
            enable_autograd_cache=False, force_non_lazy_backward_lowering=True
        ):
            torch_api.compile_fx(
                gm,
                inputs,
                inner_compile=lambda graph, *_, **__: graph.forward,
                config_patches=ours | {"fallback_random": exact},
            )
        return gm.forward

    torch.compile(net, backend=backend)(torch.ones(32, 8))
    op = "aten.native_dropout.default" if exact else "prims.inductor_seeds.default"
    assert f"`{op}` would draw a second time in the backward" in told


# --- the script's own checkpoints ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OwnCheckpoints, Reentrant])
def test_b061_checkpoints_of_the_script_are_left_to_it(kind: type[Net]) -> None:
    module = kind(0.1, 2)
    eager = Step(module, module)
    for body in (EXACT, EXACT + HALF):
        Planned(kind(0.1, 2), body, runs=True).step.close_to(eager, 1e-5)


# --- the caches ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_warm_compile_brings_the_same_record_and_another_plan_none_of_it() -> None:
    def compiled(body: str) -> Compiled:
        (outcome,) = Planned(Net(blocks=1), body, runs=True).outcomes
        return outcome

    cold, warm = compiled(HALF), compiled(HALF)
    assert (cold.cache, warm.cache) == ("miss", "hit")
    assert warm.graphs == cold.graphs
    other = compiled("recompute { memory = 30% }")
    assert other.cache == "miss"
    assert other.graphs[0].bytes_saved < cold.graphs[0].bytes_saved
    plain = compiled("")
    assert plain.graphs[0].recomputed == ()
    assert plain.graphs[0].bytes_saved == cold.graphs[0].saved_without
