"""Real captures as facts: provenance, costs, gradients, digests; through AOT and Inductor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sgplan.planner import torch_api
from sgplan.planner.capture.provenance import input_names, module_path, output_names
from sgplan.planner.capture.record import ValueNames, record_graph
from sgplan.planner.facts import GraphFact

# Inductor's first import uses parts of torch that torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.ln(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return x + self.mlp(x)


class GPT(nn.Module):
    """Tied embedding, a list of blocks."""

    def __init__(self, width: int = 8, symbols: int = 16) -> None:
        super().__init__()
        self.tok = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.head = nn.Linear(width, symbols, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits  # noqa: RET504 - Dynamo keeps the variable's name


class Done(BaseException):
    """Ends a capture before anything runs."""


def capture(
    call: Callable[..., Any],
    model: nn.Module,
    *inputs: torch.Tensor,
    through: str = "inductor",
    dynamic: bool = False,
    groups: Sequence[Sequence[int]] = (),
) -> list[GraphFact]:
    """The forward and backward facts of one call."""
    names = {id(p): name for name, p in model.named_parameters()}
    modules = [path for path, _ in model.named_modules()]
    found: list[GraphFact] = []

    def backend(gm: torch.fx.GraphModule, given: Sequence[Any]) -> Any:
        values = ValueNames(input_names(gm, given, ("ids",)), output_names(gm))

        def record(graph: torch.fx.GraphModule, direction: Any) -> None:
            places = torch_api.gradient_inputs(graph) if direction == "backward" else []
            gradients = [None if place is None else names.get(id(given[place])) for place in places]
            found.append(
                record_graph(
                    graph,
                    direction,
                    "GPT.forward",
                    gradients=gradients,
                    groups=groups if direction == "backward" else (),
                    names=values,
                    modules=modules,
                )
            )

        _trace[through](gm, given, record)
        raise Done

    torch._dynamo.reset()
    with pytest.raises(Done):
        torch.compile(call, backend=backend, dynamic=dynamic)(*inputs)
    return found


def _through_aot(gm: torch.fx.GraphModule, given: Sequence[Any], record: Any) -> None:
    def keep(direction: str) -> Callable[..., Any]:
        def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
            record(graph, direction)
            return graph.forward

        return compiler

    torch_api.capture_only(gm, given, keep("forward"), keep("backward"))


def _through_inductor(gm: torch.fx.GraphModule, given: Sequence[Any], record: Any) -> None:
    def inner(graph: torch.fx.GraphModule, _: Any, **options: Any) -> Any:
        record(graph, "backward" if options.get("is_backward") else "forward")

        def never(arguments: list[Any]) -> Any:
            raise AssertionError

        never._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
        return never

    with torch_api.functorch_config(
        force_non_lazy_backward_lowering=True, enable_autograd_cache=False
    ):
        torch_api.compile_fx(gm, given, inner_compile=inner)


_trace = {"aot": _through_aot, "inductor": _through_inductor}
IDS = torch.zeros(2, 6, dtype=torch.long)


def inline(model: nn.Module) -> Callable[..., Any]:
    """How sgplan captures a module: its call behind a frame that Dynamo does not skip."""
    return torch_api.wrap_inline(model)


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    return GPT()


@pytest.fixture(scope="module", params=["aot", "inductor"])
def graphs(request: pytest.FixtureRequest, model: GPT) -> tuple[GraphFact, GraphFact]:
    forward, backward = capture(inline(model), model, IDS, through=request.param)
    return forward, backward


def test_modules_are_named_as_in_the_unwrapped_model(
    graphs: tuple[GraphFact, GraphFact], model: GPT
) -> None:
    paths = {path for path, _ in model.named_modules()}
    for graph in graphs:
        assert {op.module for op in graph.ops} <= paths
    assert "blocks.1.mlp.0" in {op.module for op in graphs[0].ops}
    assert "blocks.1.mlp.0" in {op.module for op in graphs[1].ops}


def test_every_gradient_is_found_where_it_becomes_final(
    graphs: tuple[GraphFact, GraphFact], model: GPT
) -> None:
    gradients = {g.parameter: g for g in graphs[1].gradients}
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    for gradient in gradients.values():
        assert graphs[1].ops[gradient.position].op == gradient.op
    weight = gradients["blocks.0.qkv.weight"]
    assert (weight.op, weight.module) == ("aten.mm.default", "blocks.0.qkv")
    # The tied weight is final only when both uses are summed, at the very end.
    assert gradients["tok.weight"].position == max(g.position for g in gradients.values())


def test_values_carry_the_names_of_the_script(graphs: tuple[GraphFact, GraphFact]) -> None:
    forward, backward = graphs
    assert (forward.inputs, forward.outputs) == (("ids",), ("logits",))
    assert forward.input_shapes == ((2, 6),)
    assert (backward.inputs, backward.outputs) == (("dlogits",), ("grads",))


def test_matmuls_are_counted_as_torch_counts_them(graphs: tuple[GraphFact, GraphFact]) -> None:
    addmm = [op for op in graphs[0].ops if op.op == "aten.addmm.default"]
    assert addmm[0].flops == 2 * 12 * 8 * 24  # tokens, width in, width out
    assert {"matmul", "bias"} <= set(addmm[0].families)
    heavy = graphs[1].heavy_after
    assert all("matmul" in graphs[1].ops[place].families for place in heavy)
    assert list(heavy) == sorted(heavy)


def test_bytes_count_inputs_and_outputs_and_no_views(graphs: tuple[GraphFact, GraphFact]) -> None:
    addmm = next(op for op in graphs[0].ops if op.op == "aten.addmm.default")
    assert addmm.bytes == 4 * (24 + 12 * 8 + 8 * 24 + 12 * 24)
    assert {op.bytes for op in graphs[0].ops if op.op == "aten.view.default"} <= {0}


def test_saved_bytes_leave_parameters_and_views_out(graphs: tuple[GraphFact, GraphFact]) -> None:
    biggest = 12 * 24 * 4  # q, k, v, saved as views of one value
    assert biggest < graphs[0].bytes_saved < 20 * biggest
    assert graphs[1].bytes_saved == 0


def test_attention_is_counted() -> None:
    model = GPT()
    forward = capture(inline(model), model, IDS, through="aot")[0]
    attention = [op for op in forward.ops if "attention" in op.families]
    assert attention[0].flops == 2 * (2 * 2 * 6 * 6 * 8)  # two matmuls for each of two samples


def test_digests_follow_the_structure_and_not_the_object(model: GPT) -> None:
    other = GPT()
    here, there = (capture(inline(m), m, IDS)[0] for m in (model, other))
    assert here.digest == there.digest
    wider = GPT(symbols=32)
    assert capture(inline(wider), wider, IDS)[0].digest != here.digest


def test_another_length_changes_only_the_digest_with_sizes(model: GPT) -> None:
    here = capture(inline(model), model, IDS)
    there = capture(inline(model), model, torch.zeros(2, 7, dtype=torch.long))
    for one, other in zip(here, there, strict=True):
        assert one.digest != other.digest
        assert one.shapeless_digest == other.shapeless_digest


def test_dynamic_sizes_are_unknown_and_counted_as_captured(model: GPT) -> None:
    static = capture(inline(model), model, IDS)[0]
    dynamic = capture(inline(model), model, IDS, dynamic=True)[0]
    assert dynamic.input_shapes == ((None, None),)
    assert dynamic.flops == static.flops


def test_gradients_handed_over_together_are_ready_together(model: GPT) -> None:
    outputs = len(list(model.parameters())) + 1  # the ids have a place and no gradient
    backward = capture(inline(model), model, IDS, groups=[range(outputs)])[1]
    assert {g.ready for g in backward.gradients} == {max(g.position for g in backward.gradients)}


def test_a_sequential_has_no_prefix() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    forward, backward = capture(inline(model), model, torch.zeros(2, 4))
    assert {op.module for op in forward.ops} <= {"0", "1", "2"}
    assert {g.parameter for g in backward.gradients} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert forward.outputs == ("out",)


def test_a_gradient_handed_through_has_no_op() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.shift = nn.Parameter(torch.zeros(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) + self.shift

    model = Shift()
    backward = capture(inline(model), model, torch.zeros(2, 3))[1]
    found = {g.parameter: (g.position, g.op) for g in backward.gradients}
    assert found["shift"] == (-1, "")
    assert found["fc.weight"][1] == "aten.mm.default"


def test_a_convolution_without_bias_is_no_bias() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    forward, backward = capture(inline(model), model, torch.zeros(2, 3, 8, 8), through="aot")
    bare, biased = [op for op in forward.ops if op.op == "aten.convolution.default"]
    assert (bare.families, biased.families) == (("conv",), ("conv", "bias"))
    assert bare.flops == 2 * 2 * 4 * 36 * 27
    assert any("norm" in op.families for op in forward.ops)
    assert any(backward.ops[place].families == ("conv",) for place in backward.heavy_after)


DDP_CAPTURE = """
import os, sys, tempfile
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from sgplan.planner.capture.provenance import module_of
from sgplan.planner import torch_api

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
torch._dynamo.config.optimize_ddp = False
seen = set()
def backend(gm, given):
    def keep(graph, _):
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        seen.update(module_of(node, {"", "fc", "fc.0", "fc.1"}) for node in nodes)
        return graph.forward
    torch_api.capture_only(gm, given, keep, keep)
    return gm.forward
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    def forward(self, x):
        return self.fc[1](self.fc[0](x))
torch.compile(DDP(Net()), backend=backend)(torch.zeros(1, 3))
print(sorted(seen))
"""


def test_a_ddp_wrapper_leaves_no_trace_in_names(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DDP_CAPTURE, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "['fc.0', 'fc.1']"


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("L['self']", ""),
        ("L['self'].blocks.0", "blocks.0"),
        ("L['fn'].__self__.blocks.0.ln", "blocks.0.ln"),
        ("L['self']._modules['blocks']._modules['0']", "blocks.0"),
        ("L['self'].blocks[0].mlp['fc']", "blocks.0.mlp.fc"),
        ("L['self']._orig_mod.tok", "tok"),
        ("L['self'].module.tok", "tok"),
        ("L['self'].module._orig_mod.module.tok", "tok"),
        ("G['model'].tok", "tok"),
    ],
)
def test_wrappers_are_dropped_from_paths(raw: str, path: str) -> None:
    assert module_path(raw) == path


def test_a_module_that_is_called_module_keeps_its_name() -> None:
    assert module_path("L['self'].module.fc", {"module", "module.fc"}) == "module.fc"
    assert module_path("L['self'].module.module.fc", {"module", "module.fc"}) == "module.fc"
