from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, SGD, Optimizer

from sgplan.interpreter.events import StepFinished
from sgplan.interpreter.steps import StepWatch

from .world import Kept

pytestmark = pytest.mark.usefixtures("patched")


class Watched:
    """A step watch over a script of a few lines."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.ended = 0
        self.watch = StepWatch(self.kept.emit, self._end)
        self.watch.install()

    def _end(self) -> None:
        self.ended += 1

    def train(self, parameter: torch.Tensor, samples: int = 4, factor: float = 1.0) -> None:
        """What rank and patches tell the watch in one forward and backward."""
        self.watch.forward(samples, leading=True)
        loss = (parameter * factor).sum()
        loss.backward()
        self.watch.backward(loss, leading=True)

    @property
    def steps(self) -> list[StepFinished]:
        return self.kept.of(StepFinished)


@pytest.fixture
def watched(patched: None) -> Watched:
    return Watched()


def weight(count: int = 3) -> nn.Parameter:
    return nn.Parameter(torch.ones(count))


def test_a_step_ends_when_the_optimizer_steps(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    for _ in range(2):
        watched.train(w)
        optimizer.step()
    assert [(s.step, s.samples, s.skipped) for s in watched.steps] == [
        (1, 4, False),
        (2, 4, False),
    ]
    assert watched.ended == 2


def test_only_the_leading_optimizer_ends_steps(watched: Watched) -> None:
    large, small = weight(30), weight(3)
    second, first = SGD([small], lr=0.1), SGD([large], lr=0.1)
    for _ in range(2):
        watched.train(large)
        watched.train(small)
        second.step()
        second.step()
        first.step()
    assert len(watched.steps) == 2


def test_a_later_larger_optimizer_leads(watched: Watched) -> None:
    small, large = weight(3), weight(30)
    first = SGD([small], lr=0.1)
    watched.train(small)
    first.step()
    second = SGD([large], lr=0.1)
    watched.train(large)
    first.step()
    assert len(watched.steps) == 1
    second.step()
    assert len(watched.steps) == 2


def test_an_optimizer_that_is_gone_leads_no_more(watched: Watched) -> None:
    small, large = weight(3), weight(30)
    first, second = SGD([small], lr=0.1), SGD([large], lr=0.1)
    assert watched.watch.is_leading(second)
    del second
    watched.train(small)
    first.step()
    assert len(watched.steps) == 1


def test_a_step_without_a_backward_is_none(watched: Watched) -> None:
    optimizer = SGD([weight()], lr=0.1)
    optimizer.step()
    assert watched.steps == []


def test_accumulated_samples_belong_to_one_step(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    for _ in range(3):
        watched.train(w, samples=2)
    optimizer.step()
    assert [s.samples for s in watched.steps] == [6]


def test_a_closure_called_many_times_is_one_step(watched: Watched) -> None:
    w = weight()
    optimizer = LBFGS([w], max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = w.pow(2).sum()
        loss.backward()
        watched.watch.backward(loss, leading=True)
        return loss

    optimizer.step(closure)
    assert len(watched.steps) == 1


def test_the_loss_is_the_value_at_the_backward(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    watched.train(w)
    optimizer.step()
    (step,) = watched.steps
    assert step.loss == 3.0
    assert isinstance(step.loss, float)


def test_a_loss_that_cannot_be_read_ends_nothing(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    with FakeTensorMode() as mode:
        watched.train(mode.from_tensor(w))
    optimizer.step()
    (step,) = watched.steps
    assert isinstance(step.loss, torch.Tensor)


def test_a_loss_that_is_no_scalar_is_not_shown(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    watched.watch.backward(torch.ones(3), leading=True)
    optimizer.step()
    assert watched.steps[0].loss is None


def test_another_roots_loss_is_not_shown(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    watched.train(w)
    watched.watch.backward(torch.tensor(9.0), leading=False)
    optimizer.step()
    assert watched.steps[0].loss is not None
    assert float(watched.steps[0].loss) == 3.0


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_is_counted_and_flagged(watched: Watched, fused: bool) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1, fused=fused)
    scaler = GradScaler("cpu")
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        watched.watch.forward(4, leading=True)
        loss = (w * factor).sum()
        scaler.scale(loss).backward()
        watched.watch.backward(loss, leading=True)
        scaler.step(optimizer)
        scaler.update()
    assert [s.skipped for s in watched.steps] == [True, False]


def test_a_scaler_of_another_optimizer_ends_no_step(watched: Watched) -> None:
    small, large = weight(3), weight(30)
    second, first = SGD([small], lr=0.1), SGD([large], lr=0.1)
    scaler = GradScaler("cpu")
    for w in (small, large):
        scaler.scale(w.sum()).backward()
    watched.watch.backward(None, leading=True)
    scaler.step(second)
    assert watched.steps == []
    scaler.step(first)
    assert len(watched.steps) == 1


def test_a_disabled_scaler_leaves_the_step_to_the_optimizer(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    scaler = GradScaler("cpu", enabled=False)
    watched.train(w)
    scaler.step(optimizer)
    assert len(watched.steps) == 1


def test_without_an_optimizer_the_next_forward_ends_the_step(watched: Watched) -> None:
    w = weight()
    watched.train(w)
    assert watched.steps == []
    watched.train(w)
    assert len(watched.steps) == 1
    watched.watch.script_ends()
    assert len(watched.steps) == 2
    watched.watch.script_ends()
    assert len(watched.steps) == 2


def test_with_an_optimizer_the_end_of_the_script_ends_no_step(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    watched.train(w)
    watched.watch.script_ends()
    assert optimizer.param_groups
    assert watched.steps == []


def test_an_optimizers_subclass_and_hooks_are_seen(watched: Watched) -> None:
    class Mine(Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> Any:
            """Does nothing."""

    w = weight()
    optimizer = Mine([w])
    watched.train(w)
    optimizer.step()
    assert len(watched.steps) == 1


def test_seconds_are_summed_per_step(watched: Watched) -> None:
    w = weight()
    optimizer = SGD([w], lr=0.1)
    watched.train(w)
    watched.watch.wait = 0.25
    watched.watch.own = 0.125
    optimizer.step()
    watched.train(w)
    optimizer.step()
    first, second = watched.steps
    assert (first.wait, first.own, second.wait) == (0.25, 0.125, 0.0)
    assert 0 < second.own < second.seconds  # what the end of the first step took
