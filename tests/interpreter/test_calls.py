"""What a script compiles belongs to the root that is called meanwhile, and to none outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

from sgplan.interpreter import events
from sgplan.interpreter.calls import Calls
from sgplan.interpreter.compiling import Compiling
from sgplan.interpreter.graph_backend import GraphBackend
from sgplan.interpreter.outermost import Outermost
from sgplan.interpreter.takeover import Takeover
from sgplan.planner.capture.record import record_graph
from sgplan.planner.facts import GraphFact

from .world import rank_under, root_of

pytestmark = [
    pytest.mark.usefixtures("group", "patched"),
    # torch says this of itself when Inductor is first imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
    # Dynamo looks, where it goes on behind a graph break, whether a value has one.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

X = torch.ones(4, 3)
LOW = 'precision "low" { compute = bf16 }'


class Script:
    """A planned script in this process."""

    def __init__(self, folder: Path, body: str = LOW, mode: Any = "plan") -> None:
        self.rank, self.kept = rank_under(folder, body, mode=mode)
        compiling = Compiling(self.rank, GraphBackend(self.rank, record_graph))
        compiling.install()
        Takeover(self.rank, compiling.entering).install()
        Outermost(self.rank, compiling.entering, compiling.compiles).install()

    def forwards(self, root: int = 0) -> list[GraphFact]:
        return [g for g in self.rank.roots[root].graphs if g.direction == "forward"]


def reads(graph: GraphFact, name: str) -> set[str]:
    found = [op.reads for op in graph.ops if op.op.startswith(f"aten.{name}.")]
    assert found, [op.op for op in graph.ops]
    return {dtype for each in found for dtype in each}


class Net(nn.Module):
    """Two regions; the second takes no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.T
        torch._dynamo.graph_break()
        return (y @ y.T).sum()


def test_a_compiled_optimizer_step_is_left_as_written(tmp_path: Path) -> None:
    Script(tmp_path, mode="apply")
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(X).pow(2).sum().backward()
    weight, gradient = net.weight.detach().clone(), net.weight.grad
    assert gradient is not None

    @torch.compile
    def update() -> None:
        optimizer.step()

    update()
    torch.testing.assert_close(net.weight.detach(), weight - 0.1 * gradient, rtol=0, atol=1e-7)


def test_a_compiled_helper_outside_of_every_call_keeps_its_formats(tmp_path: Path) -> None:
    Script(tmp_path, mode="apply")
    net = torch.compile(nn.Linear(3, 4))
    net(X)

    @torch.compile
    def overlap(values: Tensor) -> Tensor:
        return values @ values.T

    values = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(overlap(values), values @ values.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("of", ["", 'model = "net" '])
@pytest.mark.parametrize("wrap", [DDP, torch.compile, lambda net: net], ids=["ddp", "own", "plan"])
def test_a_region_without_parameters_belongs_to_the_root_that_is_called(
    tmp_path: Path, of: str, wrap: Callable[..., Any]
) -> None:
    body = f'model "net" {{ is = "{Net.__module__}:Net" }}\n'
    script = Script(tmp_path, body + f'precision "low" {{ {of}compute = bf16 }}')
    wrap(Net())(X)
    with_parameter, without = script.forwards()
    assert reads(with_parameter, "mm") == reads(without, "mm") == {"bf16"}


def test_calls_of_a_root_nest_and_end_with_an_exception() -> None:
    calls = Calls()
    outer, inner = root_of(nn.Linear(1, 1)), root_of(nn.Linear(1, 1), name="inner")

    def fail() -> None:
        with calls.of(inner), calls.of(None):
            assert calls.root is inner
            raise ValueError("out")

    with calls.of(outer):
        with pytest.raises(ValueError, match="out"):
            fail()
        assert calls.root is outer
    assert calls.root is None


@pytest.mark.parametrize("wrap", [DDP, torch.compile, lambda net: net], ids=["ddp", "own", "plan"])
def test_a_call_that_fails_is_over(tmp_path: Path, wrap: Callable[..., Any]) -> None:
    class Fails(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            raise ValueError("no")

    script = Script(tmp_path)
    net = wrap(Fails(3, 4))
    with pytest.raises(ValueError, match="no"):
        net(X)
    assert script.rank.roots
    assert script.rank.calls.root is None


def test_a_part_that_is_called_by_itself_is_its_roots(tmp_path: Path) -> None:
    script = Script(tmp_path)
    part: Any = torch.compile(nn.Linear(3, 4))
    ddp = DDP(nn.Sequential(part, nn.ReLU()))
    ddp.module[0](X)
    (graph,) = script.forwards()
    assert reads(graph, "addmm") == {"bf16"}


def test_what_was_compiled_before_a_module_is_a_root_is_not_taken_for_it(tmp_path: Path) -> None:
    script = Script(tmp_path)
    net = torch.compile(nn.Linear(3, 4))
    with torch.no_grad():
        net(X)  # torch knows no training of it yet
    net(X)
    with torch.no_grad():
        net(X)
    trained, evaluated = script.forwards()
    assert reads(trained, "addmm") == reads(evaluated, "addmm") == {"bf16"}


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_inside_of_a_model_leaves_the_loss_scale_to_the_script(
    tmp_path: Path, enabled: bool
) -> None:
    class Casts(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                return super().forward(input)

    script = Script(tmp_path, 'precision "low" { compute = fp16 }')
    DDP(Casts(3, 4))(X)
    said = [e.text for e in script.kept.of(events.NoteAdded) if e.subject == "loss scale"]
    assert said == ["the script uses autocast: the loss scale is left to the script"] * enabled
    backward = script.rank.roots[0].graphs[-1]
    assert backward.direction == "backward"
    assert any(op.op.startswith("aten.div") for op in backward.ops) is not enabled
