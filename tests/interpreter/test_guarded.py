"""Captured calls under guards, in plan mode: graphs are recorded and no code is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sgplan.grammar.plan import Guard
from sgplan.interpreter import events
from sgplan.interpreter.guarded import Watch

from .test_compiling import Script
from .world import Left, plan, rank_under, root_of

pytestmark = [
    pytest.mark.usefixtures("group", "patched"),
    # torch says this of itself when Inductor is first imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
    # Dynamo looks at the gradient of what a graph passes on to the next.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def rows(count: int) -> Tensor:
    return torch.ones(count, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x))


class Numbered(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(len([0] * x.shape[0]))


def scaled(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x * float(len([0] * x.shape[0]))


class Breaks(Net):
    """Has a local `x` in a function that is compiled by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return scaled(super().forward(x))


RANGE = 'guard "n" { on = %s  allow = 2..64 }'


@pytest.mark.parametrize(
    ("on", "call"),
    [
        ('input["x"].shape[0]', lambda model: model(rows(8))),
        ("input[0].shape[0]", lambda model: model(x=rows(8))),
    ],
)
def test_a_fixed_size_is_found_however_the_call_passes_it(
    on: str, call: Any, tmp_path: Path
) -> None:
    script = Script(tmp_path, RANGE % on)
    with pytest.raises(Left):
        call(DDP(Numbered()))
    assert script.kept.codes() == ["SG0726"]


def test_a_local_of_another_frame_is_not_the_argument(tmp_path: Path) -> None:
    script = Script(tmp_path, RANGE % 'input["x"].shape[0]')
    model = DDP(Breaks())
    model(rows(8))
    model(rows(5))
    assert script.kept.codes() == []
    notes = [note.text for note in script.kept.of(events.NoteAdded) if note.subject == "guard"]
    (note,) = notes
    assert note.startswith("a call of `Breaks` breaks into several graphs")


def test_without_a_graph_break_nothing_is_said_of_one(tmp_path: Path) -> None:
    script = Script(tmp_path, 'guard "n" { on = input[0].shape[0]  allow = [8, 5] }')
    model = DDP(Net())
    model(rows(8))
    model(rows(5))
    assert not [note for note in script.kept.of(events.NoteAdded) if note.subject == "guard"]


class Heated(nn.Module):
    """Its `forward` has other arguments than that of the model that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)

    def forward(self, heat: float, x: Tensor) -> Tensor:
        return self.a(x) * heat


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heated = Heated()
        self.heated.compile()

    def forward(self, x: Tensor, heat: float) -> Tensor:
        return self.heated(heat, x)


def test_a_miss_of_a_block_is_read_in_the_call_of_the_block(tmp_path: Path) -> None:
    script = Script(tmp_path)
    model = DDP(Outer())
    model(rows(8), 2.0)
    model(rows(8), 1.5)
    (miss,) = script.kept.of(events.GuardMissed)
    assert (miss.path, miss.old, miss.new) == ("input[0]", "2.0", "1.5")


def test_a_local_behind_a_graph_break_is_no_path_of_the_language(tmp_path: Path) -> None:
    script = Script(tmp_path, "capture { engine = inductor  dynamic = off }")
    model = DDP(Breaks())
    model(rows(8))
    model(rows(5))
    ours, behind = script.kept.of(events.GuardMissed)[0], script.kept.of(events.GuardMissed)[-1]
    assert ours.path == 'input["x"].shape[0]'
    assert behind.path == "size of `x`"
    assert behind.line == ""


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        for block in self.blocks:
            block.compile()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_all_modules_that_a_guard_holds_for_share_its_budget(tmp_path: Path) -> None:
    body = 'guard "n" { on = input[0].shape[0]  allow = [8]  budget = 2 }'
    script = Script(tmp_path, body)
    model = DDP(Blocks())
    model(rows(8))
    with pytest.raises(Left):
        model(rows(5))  # one compile for each block
    assert script.kept.codes() == ["SG0722"]
    assert len(script.kept.of(events.GuardMissed)) == 3


def help_of(script: Script) -> str:
    (raised,) = script.kept.of(events.DiagnosticRaised)
    return str(raised.diagnostic["help"])


@pytest.mark.parametrize(
    ("capture", "budget", "cure"),
    [
        ("recompiles = 1", 9, "raise `capture.recompiles`"),
        ("recompiles = 9", 1, "raise the budget"),
    ],
)
def test_the_cure_names_what_is_spent(capture: str, budget: int, cure: str, tmp_path: Path) -> None:
    body = f'guard "n" {{ on = input[0].shape[0]  allow = [8]  budget = {budget} }}'
    script = Script(tmp_path, f"capture {{ {capture} }}\n{body}")
    model = DDP(Net())
    for count in (8, 7):
        model(rows(count))
    with pytest.raises(Left):
        model(rows(6))
    assert script.kept.codes() == ["SG0722"]
    assert f", {cure}, or" in help_of(script)


def watch(body: str) -> Watch:
    class Typed(nn.Module):
        def forward(self, x: Tensor, heat: Any = None) -> Tensor:
            return x

    (guard,) = plan(f'guard "g" {{ {body} }}').guards
    assert isinstance(guard, Guard)
    return Watch(guard, Typed())


def test_a_whole_number_of_a_list_allows_the_fraction() -> None:
    found = watch('on = input["heat"]  allow = [0, 0.5]')
    assert found.allows(0.0)
    assert found.allows(0)
    assert not found.allows(False)
    assert not found.allows(0.25)
    assert not watch('on = input["heat"]  allow = [off]').allows(0.0)


def test_the_first_value_opens_the_list_and_the_line_holds_it() -> None:
    types = watch("on = input[*].dtype")
    assert types.allows(("float32", "int64"))
    assert not types.allows("float32")
    assert "allow = [float32, int64]" in types.miss(None, "float32").line
    heat = watch('on = input["heat"]')
    assert heat.allows(None)
    assert heat.allows(5)
    assert not heat.allows(6)
    assert "allow = [5, 6]" in heat.miss(5, 6).line


TWO = 'model "G" { is = "x:G" }\n'
OF_G = 'guard "n" { model = "G"  on = input[0].shape[0]  allow = [8] }'


def test_a_model_that_trains_later_is_judged_when_it_is_called(tmp_path: Path) -> None:
    rank, _ = rank_under(tmp_path, TWO + OF_G)
    modules = [Net(), Net()]
    first, later = root_of(modules[0], name="D"), root_of(modules[1], name="G")
    rank.roots += [first, later]
    first.called = 1
    assert rank.guards.unasked() == []
    assert [d.code for d in rank.guards.unasked(ended=True)] == ["SG0725"]
    later.called = 1
    assert [d.code for d in rank.guards.unasked()] == ["SG0725"]
    assert len(rank.guards.of(modules[1])) == 1
    assert rank.guards.unasked(ended=True) == []


def test_a_guard_that_a_priority_overrides_is_not_missed(tmp_path: Path) -> None:
    above = 'guard "above" { on = input[0].shape[0]  allow = [9]  priority = 1 }'
    rank, _ = rank_under(tmp_path, f"{TWO}{OF_G}\n{above}")
    module = Net()
    rank.roots.append(root_of(module, name="G"))
    rank.roots[0].called = 1
    assert [guard.label for guard in rank.guards.of(module)] == ["above"]
    assert rank.guards.unasked() == []
    assert rank.guards.unasked(ended=True) == []


def test_a_guard_of_a_model_that_never_was_is_said_at_the_end(tmp_path: Path) -> None:
    rank, _ = rank_under(tmp_path, TWO + OF_G)
    module = Net()
    rank.roots.append(root_of(module))
    rank.roots[0].called = 1
    assert rank.guards.unasked() == []
    assert [d.code for d in rank.guards.unasked(ended=True)] == ["SG0725"]
