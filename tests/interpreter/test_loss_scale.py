"""Scales by themselves, and the layer that leaves steps out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, AdamW, Optimizer

from sgplan.grammar.plan import Dynamic
from sgplan.interpreter.events import NoteAdded, StepFinished
from sgplan.interpreter.loss_scale import Scale, all_finite
from sgplan.interpreter.roots import Root

from . import world

FP16 = 'precision "p" { compute = fp16 }'
MOVES = Dynamic(init=16.0, growth=4.0, backoff=0.5, every=2)


def scale(setting: Any) -> Scale:
    found = Scale(torch.ones(()))
    found.enter(setting)
    return found


def settled(found: Scale, *overflows: bool) -> list[float]:
    """Values behind steps with and without overflows."""
    values: list[float] = []
    for overflowed in overflows:
        found.checked, found.overflowed = True, overflowed
        found.settle()
        found.enter(found.setting)
        values.append(found.tensor.item())
    return values


def test_a_dynamic_scale_moves() -> None:
    found = scale(MOVES)
    assert found.tensor.item() == 16.0
    assert settled(found, False, False, False, True, False, False) == [16, 64, 64, 32, 32, 128]


def test_steps_that_were_not_looked_at_do_not_count() -> None:
    found = scale(MOVES)
    for _ in range(5):
        found.settle()
        found.enter(found.setting)
    assert found.tensor.item() == 16.0


def test_it_moves_as_that_of_torch() -> None:
    """Beside `GradScaler` over the same overflows."""
    theirs = GradScaler(
        "cpu", init_scale=16.0, growth_factor=4.0, backoff_factor=0.5, growth_interval=2
    )
    parameter = nn.Parameter(torch.ones(()))
    optimizer = SGD([parameter], lr=0.0)
    overflows = [False, True, True, False, False, False, False, True, False, False]
    expected: list[float] = []
    for overflowed in overflows:
        factor = float("inf") if overflowed else 1.0
        optimizer.zero_grad()
        theirs.scale(parameter * factor).backward()
        theirs.step(optimizer)
        theirs.update()
        expected.append(theirs.get_scale())
    assert settled(scale(MOVES), *overflows) == expected


def test_a_fixed_scale_stays_and_none_is_one() -> None:
    assert settled(scale(8.0), False, True) == [8.0, 8.0]
    assert settled(scale(None), False, True) == [1.0, 1.0]


def test_a_dynamic_scale_is_kept_over_steps_without_one() -> None:
    found = scale(MOVES)
    settled(found, True)
    found.enter(None)
    assert found.tensor.item() == 1.0
    found.enter(MOVES)
    assert found.tensor.item() == 8.0


def test_what_is_finite() -> None:
    fine = torch.ones(2)
    assert all_finite([fine, torch.zeros(0), torch.full((2,), 6e4, dtype=torch.float16)])
    assert not all_finite([fine, torch.tensor([1.0, float("nan")])])
    assert not all_finite([torch.eye(2).to_sparse() * float("inf"), fine])
    assert all_finite([torch.eye(2).to_sparse()])
    assert all_finite([torch.zeros(0)])


# --- the layer -----------------------------------------------------------------------------------


class Scaled:
    """A rank with a scaled root, in this process."""

    def __init__(self, folder: Path, body: str = FP16) -> None:
        self.rank, self.kept = world.rank_under(folder, body)
        self.rank.loss_scales.install()
        self.rank.steps.install()
        self.rank.inner_steps.install()
        self.module = nn.Linear(2, 1)
        self.root: Root = world.root_of(self.module)
        self.rank.roots.append(self.root)

    def compiled(self) -> torch.Tensor:
        """A graph of the root is compiled; what it multiplies with."""
        made = self.rank.loss_scales.scaling(self.root)
        assert made is not None
        return made.scale

    def gradients(self, value: float) -> None:
        """A backward."""
        self.rank.steps.backward(None, leading=True)
        for parameter in self.module.parameters():
            parameter.grad = torch.full_like(parameter, value)

    def skipped(self) -> list[bool]:
        return [step.skipped for step in self.kept.of(StepFinished)]

    def notes(self) -> list[str]:
        return [note.text for note in self.kept.of(NoteAdded)]


@pytest.fixture
def scaled(patched: None, tmp_path: Path) -> Scaled:
    return Scaled(tmp_path)


class Careless(Optimizer):
    """Takes it that every gradient is there, and counts its steps."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                parameter.sub_(parameter.grad)


def test_an_overflow_leaves_the_whole_step_out(scaled: Scaled) -> None:
    optimizer = Careless(scaled.module.parameters())
    factor = scaled.compiled()
    before = scaled.module.weight.detach().clone()
    hooks: list[float] = []

    def hook(*given: Any) -> None:
        assert scaled.module.bias.grad is not None
        hooks.append(scaled.module.bias.grad.item())

    optimizer.register_step_pre_hook(hook)
    optimizer.register_step_post_hook(hook)
    for value in (float("inf"), 1.0):
        scaled.gradients(value)
        optimizer.step()
    assert scaled.skipped() == [True, False]
    assert optimizer.param_groups[0]["steps"] == 1
    assert torch.equal(scaled.module.weight, before - 1)
    assert hooks == [float("inf"), float("inf"), 1.0, 1.0]
    assert factor.item() == 2.0**15


def test_a_hook_of_the_script_that_reduces_is_looked_behind(scaled: Scaled) -> None:
    optimizer = Careless(scaled.module.parameters())
    scaled.compiled()

    def reduce(*given: Any) -> None:
        for parameter in scaled.module.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(float("nan"))

    optimizer.register_step_pre_hook(reduce)
    scaled.gradients(1.0)
    optimizer.step()
    assert scaled.skipped() == [True]


def test_a_scaler_that_is_built_late_ends_the_scale(scaled: Scaled) -> None:
    optimizer = SGD(scaled.module.parameters(), lr=0.1)
    factor = scaled.compiled()
    assert factor.item() == 2.0**16
    GradScaler("cpu", enabled=False)
    assert factor.item() == 2.0**16
    GradScaler("cpu")
    assert factor.item() == 1.0
    scaled.gradients(1.0)
    optimizer.step()
    assert factor.item() == 1.0
    assert len(scaled.notes()) == 1
    assert "left to the script" in scaled.notes()[0]


def test_without_an_optimizer_the_scale_is_one(scaled: Scaled) -> None:
    other = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    factor = scaled.compiled()
    assert factor.item() == 1.0
    scaled.gradients(1.0)
    other.step()
    assert scaled.notes() == ["no optimizer of torch moves `model`: its loss is not scaled"]


def test_an_optimizer_that_is_built_behind_the_forward_begins_the_scale(scaled: Scaled) -> None:
    factor = scaled.compiled()
    optimizer = AdamW(scaled.module.parameters())
    assert factor.item() == 2.0**16
    scaled.gradients(1.0)
    optimizer.step()
    assert scaled.notes() == []


def test_a_closure_runs_without_a_scale(scaled: Scaled) -> None:
    optimizer = SGD(scaled.module.parameters(), lr=0.1)
    factor = scaled.compiled()
    seen: list[float] = []

    def closure() -> float:
        seen.append(factor.item())
        scaled.gradients(1.0)
        return 0.0

    optimizer.step(closure)
    assert seen == [1.0]
    assert factor.item() == 2.0**16
    assert len(scaled.notes()) == 1


def test_a_verification_from_a_later_stage_has_its_scale(patched: None, tmp_path: Path) -> None:
    scaled = Scaled(
        tmp_path,
        'precision "warm" { steps = 0..199 }\n'
        'precision "main" { steps = 200..  compute = fp16  loss_scale = 8 }',
    )
    optimizer = SGD(scaled.module.parameters(), lr=0.1)
    assert scaled.compiled().item() == 1.0
    scaled.rank.stage_offset = 200
    scaled.gradients(1.0)
    optimizer.step()
    assert scaled.compiled().item() == 8.0
