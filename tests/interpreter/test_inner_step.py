"""Layers around an optimizer's inner step: order, hooks, classes of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from sgplan.interpreter.inner_step import InnerSteps, Step

pytestmark = pytest.mark.usefixtures("patched")

Said = list[str]


def layer(said: Said, name: str) -> Callable[..., Any]:
    def around(below: Step, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        said.append(f"{name} begins")
        try:
            return below(optimizer, *args, **kwargs)
        finally:
            said.append(f"{name} ends")

    return around


@pytest.fixture
def said(patched: None) -> Said:
    """What two layers say."""
    found: Said = []
    inner = InnerSteps()
    inner.add(layer(found, "first"))
    inner.add(layer(found, "second"))
    inner.install()
    return found


ONCE = ["first begins", "second begins", "second ends", "first ends"]


def weight() -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter


def hooked(optimizer: Optimizer, said: Said) -> Optimizer:
    optimizer.register_step_pre_hook(lambda *given: said.append("before"))
    optimizer.register_step_post_hook(lambda *given: said.append("behind"))
    return optimizer


def test_layers_stand_below_the_hooks_of_the_script(said: Said) -> None:
    hooked(SGD([weight()], lr=0.1), said).step()
    assert said == ["before", *ONCE, "behind"]


def test_a_class_that_torch_has_wrapped_already() -> None:
    SGD([weight()], lr=0.1)
    found: Said = []
    inner = InnerSteps()
    inner.add(layer(found, "first"))
    inner.install()
    hooked(SGD([weight()], lr=0.1), found).step()
    assert found == ["before", "first begins", "first ends", "behind"]


def test_a_class_of_the_script_that_extends_a_step(said: Said) -> None:
    class Mine(SGD):
        def step(self, closure: Any = None) -> Any:
            said.append("mine")
            return super().step(closure)

    SGD([weight()], lr=0.1)
    Mine([weight()], lr=0.1).step()
    assert said == [*ONCE[:2], "mine", *ONCE[2:]]


def test_arguments_and_result_pass_through(said: Said) -> None:
    parameter = weight()
    optimizer = SGD([parameter], lr=0.1)
    assert optimizer.step(closure=lambda: 3.0) == 3.0
    assert optimizer.step(lambda: 4.0) == 4.0


def test_a_step_that_raises_ends_every_layer(said: Said) -> None:
    class Mine(Optimizer):
        def step(self, closure: Any = None) -> Any:
            raise ArithmeticError

    optimizer = Mine([weight()], {})
    for _ in range(2):
        said.clear()
        with pytest.raises(ArithmeticError):
            optimizer.step()
        assert said == ONCE


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch, while it compiles
def test_a_step_that_the_script_compiles(said: Said) -> None:
    parameter = weight()
    optimizer = SGD([parameter], lr=0.25, momentum=0.5)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    step()
    step()
    assert said == ONCE * 2
    assert parameter.tolist() == [0.375] * 2


def test_a_scheduler_sees_a_step(said: Said, recwarn: pytest.WarningsRecorder) -> None:
    optimizer = SGD([weight()], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    schedule.step()
    assert said == ONCE
    assert not recwarn.list
