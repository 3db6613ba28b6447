"""Masters in one process: against an fp32 reference, with writes and closures of the script."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from sgplan.interpreter.masters import KEY, Masters


@pytest.fixture
def masters() -> Masters:
    plan = SimpleNamespace(storage_of=lambda model: ("bf16", True))
    rank: Any = SimpleNamespace(plan=plan)
    return Masters(rank)


def low(masters: Masters, *values: torch.Tensor) -> list[nn.Parameter]:
    """Parameters of a new root, stored in bf16."""
    parameters = [nn.Parameter(value.clone()) for value in values]
    masters.store("model", [(str(n), p) for n, p in enumerate(parameters)])
    return parameters


def step(masters: Masters, optimizer: Optimizer, *given: Any) -> None:
    """A step between the two hooks, as torch calls them."""
    args: tuple[Any, ...] = (optimizer, *given)
    changed = masters._before(optimizer, args, {})
    args, kwargs = changed or (args, {})
    optimizer.step(*args[1:], **kwargs)
    masters._after(optimizer, args, kwargs)


def test_fifty_fused_steps_equal_an_fp32_reference(masters: Masters) -> None:
    start = [torch.randn(5, 7), torch.randn(5)]
    stored = low(masters, *start)
    reference = [nn.Parameter(value.clone()) for value in start]
    ours = torch.optim.AdamW(stored, lr=0.01, fused=True)
    theirs = torch.optim.AdamW(reference, lr=0.01, fused=True)
    memory = [p.data_ptr() for p in stored]
    for _ in range(50):
        for p, r in zip(stored, reference, strict=True):
            p.grad = torch.randn_like(p)
            r.grad = p.grad.float()
        step(masters, ours)
        theirs.step()
    for p, r in zip(stored, reference, strict=True):
        assert torch.equal(masters._masters[p], r)
        assert torch.equal(p, r.bfloat16())
        assert torch.equal(ours.state[p]["exp_avg"], theirs.state[r]["exp_avg"])
        assert ours.state[p]["exp_avg"].dtype is torch.float32
    assert [p.data_ptr() for p in stored] == memory


def test_a_write_of_the_script_is_taken_over_where_it_wrote(masters: Masters) -> None:
    (parameter,) = low(masters, torch.randn(8))
    before = masters._masters[parameter].clone()
    parameter.data[:4] = 0.0
    parameter.grad = torch.zeros_like(parameter)
    step(masters, torch.optim.SGD([parameter], lr=0.1))
    assert masters._masters[parameter][:4].tolist() == [0.0] * 4
    assert torch.equal(masters._masters[parameter][4:], before[4:])


def test_a_closure_sees_the_parameters_of_the_script(masters: Masters) -> None:
    (parameter,) = low(masters, torch.ones(4))
    optimizer = torch.optim.LBFGS([parameter], max_iter=3)
    formats: list[torch.dtype] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        formats.extend(p.dtype for p in optimizer.param_groups[0]["params"])
        loss = (parameter - 3).pow(2).sum()
        loss.backward()
        return loss

    step(masters, optimizer, closure)
    assert set(formats) == {torch.bfloat16}
    assert parameter.tolist() == pytest.approx([3.0] * 4, abs=0.05)
    assert optimizer.param_groups[0]["params"] == [parameter]


def test_a_step_that_raised_leaves_nothing_swapped(masters: Masters) -> None:
    (parameter,) = low(masters, torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones_like(parameter)
    masters._before(optimizer, (optimizer,), {})
    step(masters, optimizer)
    assert optimizer.param_groups[0]["params"][0] is parameter
    assert parameter.tolist() == torch.full((4,), 0.9).bfloat16().tolist()


def test_a_state_saved_after_a_step_that_raised_has_its_masters(masters: Masters) -> None:
    (parameter,) = low(masters, torch.full((4,), 1.001))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    masters._built(optimizer)
    masters._before(optimizer, (optimizer,), {})
    (saved,) = optimizer.state_dict()[KEY].values()
    assert torch.equal(saved, torch.full((4,), 1.001))
    assert optimizer.param_groups[0]["params"][0] is parameter
