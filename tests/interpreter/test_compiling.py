"""What the script compiles, in plan mode: graphs are recorded and no code is generated."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sgplan.interpreter import events
from sgplan.interpreter.compiling import Compiling
from sgplan.interpreter.graph_backend import GraphBackend
from sgplan.interpreter.takeover import Takeover
from sgplan.planner.capture.record import record_graph

from .world import Left, rank_under

pytestmark = [
    pytest.mark.usefixtures("group", "patched"),
    # torch says this of itself when Inductor is first imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
    # Dynamo looks at the gradient of what a graph passes on to the next.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

X = torch.ones(4, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


class Script:
    """A planned script up to its first backward."""

    def __init__(self, folder: Path, body: str = "") -> None:
        self.rank, self.kept = rank_under(folder, body, mode="plan")
        graphs = GraphBackend(self.rank, record_graph)
        compiling = Compiling(self.rank, graphs)
        compiling.install()
        Takeover(self.rank, compiling.entering).install()

    def directions(self) -> list[str]:
        return [event.direction for event in self.kept.of(events.GraphCaptured)]

    def why(self) -> list[str]:
        return [event.why for event in self.kept.of(events.FallbackTaken)]


@pytest.fixture
def script(tmp_path: Path, group: None, patched: None) -> Script:
    return Script(tmp_path)


BOTH = ["forward", "backward"]


def test_compile_then_ddp_is_captured_once(script: Script) -> None:
    ddp = DDP(torch.compile(Net()))
    ddp(X)
    assert script.directions() == BOTH
    (root,) = script.rank.roots
    assert (root.kind, root.engine, root.path) == ("ddp", "inductor", "in_graph")


def test_ddp_then_compile_is_captured_once(script: Script) -> None:
    model = torch.compile(DDP(Net()))
    model(X)
    assert script.directions() == BOTH
    (root,) = script.rank.roots
    assert (root.engine, root.path) == ("inductor", "in_graph")


def test_module_compile_in_place_captures_classes_of_torch_nn(script: Script) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    ddp = DDP(model)
    model.compile()
    ddp(X)
    assert script.directions() == BOTH


def test_a_compiled_module_without_ddp_is_a_root(script: Script) -> None:
    model = torch.compile(Net())
    model(X)
    (root,) = script.rank.roots
    assert (root.kind, root.path) == ("compiled", "none")
    assert script.directions() == BOTH
    assert root.called == 1


def test_an_eager_script_is_recorded_for_the_listing(script: Script) -> None:
    ddp = DDP(Net())
    ddp(X)
    assert script.directions() == BOTH
    assert script.rank.roots[0].engine == "eager"


def test_a_foreign_backend_is_left_alone_and_named(script: Script) -> None:
    model = torch.compile(Net(), backend="eager")
    model(X)
    assert script.directions() == []
    assert script.why() == ["the script compiles with backend `eager`, which is left alone"]


def test_the_plan_can_ask_for_inductor(tmp_path: Path) -> None:
    script = Script(tmp_path, "capture { engine = inductor }")
    ddp = DDP(Net())
    ddp(X)
    (root,) = script.rank.roots
    assert (root.engine, root.path) == ("inductor", "in_graph")
    assert root.why == "`capture.engine = inductor`"
    assert script.directions() == BOTH


def test_the_plans_settings_win_and_are_said(tmp_path: Path) -> None:
    script = Script(tmp_path, "capture { dynamic = on }")
    torch.compile(Net(), dynamic=False)(X)
    (found,) = script.kept.of(events.SettingOverridden)
    assert (found.script, found.plan) == ("False", "True")


def test_a_graph_break_refuses_a_whole_graph(tmp_path: Path) -> None:
    class Breaks(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return super().forward(x)

    script = Script(tmp_path, "capture { graph = whole }")
    ddp = DDP(Breaks())
    with pytest.raises(Left):
        ddp(X)
    assert script.kept.codes() == ["SG0503"]


def test_a_region_that_is_no_class_is_refused(tmp_path: Path) -> None:
    script = Script(tmp_path, 'capture { region = "train:Nothing" }')
    with pytest.raises(Left):
        DDP(Net())
    assert script.kept.codes() == ["SG0504"]


def test_an_evaluation_of_a_script_that_does_not_compile_stays_eager(tmp_path: Path) -> None:
    script = Script(tmp_path, "capture { engine = inductor }")
    ddp = DDP(Net())
    with torch.no_grad():
        ddp(X)
    assert script.directions() == []


def test_capture_changes_no_keys_and_copies_are_plain(tmp_path: Path) -> None:
    Script(tmp_path, "capture { engine = inductor }")
    net = Net()
    keys = list(net.state_dict())
    DDP(net)
    assert list(net.state_dict()) == keys
    assert net._compiled_call_impl is not None
    assert copy.deepcopy(net)._compiled_call_impl is None


def test_a_hook_added_late_fires(script: Script) -> None:
    ddp = DDP(torch.compile(Net()))
    ddp(X)
    seen: list[Any] = []
    ddp.module._orig_mod.a.register_forward_hook(lambda *given: seen.append(1))
    ddp(X)
    assert seen


def test_the_decorator_form_compiles_too(script: Script) -> None:
    @torch.compile(dynamic=False)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert double(X).eq(2).all()


def test_a_compiled_root_lists_its_region(script: Script) -> None:
    ddp = DDP(torch.compile(Net()))
    ddp(X)
    regions = {event.region for event in script.kept.of(events.GraphCaptured)}
    assert len(regions) == 1
    assert "Net.forward" in regions.pop()


class Breaks(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return super().forward(x)


class Other(Breaks):
    pass


G = 'model "G" {{ is = "{name}" }}\ncapture "g" {{ model = "G"  {body} }}'


def for_g(cls: type, body: str) -> str:
    """A plan that says something of the model of one class only."""
    return G.format(name=f"{cls.__module__}:{cls.__qualname__}", body=body)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_whole_graph_is_asked_of_the_model_that_the_block_names(
    compiled: bool, tmp_path: Path
) -> None:
    script = Script(tmp_path, for_g(Breaks, "graph = whole"))
    torch.compile(Other())(X)
    model = torch.compile(Breaks()) if compiled else DDP(Breaks())
    assert script.kept.codes() == []
    with pytest.raises(Left):
        model(X)
    assert script.kept.codes() == ["SG0503"]


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Breaks()
        self.part.compile()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


def test_a_part_of_a_model_is_under_the_block_of_the_model(tmp_path: Path) -> None:
    script = Script(tmp_path, for_g(Outer, "graph = whole"))
    model = DDP(Outer())
    with pytest.raises(Left):
        model(X)
    assert script.kept.codes() == ["SG0503"]


def test_the_eager_engine_of_one_model_leaves_the_others_compiled(tmp_path: Path) -> None:
    script = Script(tmp_path, for_g(Net, "engine = eager"))
    torch.compile(Net())(X)
    assert script.directions() == []
    torch.compile(Other())(X)
    assert set(script.directions()) == set(BOTH)
    eager, other = script.rank.roots
    assert (eager.name, eager.engine, eager.why) == ("G", "eager", "`capture.engine = eager`")
    assert other.engine == "inductor"


@pytest.mark.parametrize("early", [True, False])
def test_the_eager_engine_of_one_model_holds_inside_ddp(early: bool, tmp_path: Path) -> None:
    script = Script(tmp_path, for_g(Net, "engine = eager"))
    (DDP(torch.compile(Net())) if early else torch.compile(DDP(Net())))(X)
    assert script.directions() == []
    (root,) = script.rank.roots
    assert root.engine == "eager"


def test_one_model_may_be_compiled_where_all_others_are_eager(tmp_path: Path) -> None:
    script = Script(
        tmp_path, 'capture "all" { engine = eager }\n' + for_g(Net, "engine = inductor")
    )
    DDP(Net())(X)
    assert script.directions() == BOTH
    torch.compile(Other())(X)
    torch.compile(lambda x: x * 2)(X)
    assert script.directions() == BOTH
    assert script.rank.roots[0].engine == "inductor"


def test_a_setting_for_one_model_does_not_win_over_another(tmp_path: Path) -> None:
    script = Script(tmp_path, for_g(Net, "dynamic = on"))
    torch.compile(Other(), dynamic=False)(X)
    assert script.kept.of(events.SettingOverridden) == []
    torch.compile(Net(), dynamic=False)(X)
    assert len(script.kept.of(events.SettingOverridden)) == 1
