"""Compiled steps against the same steps as torch takes them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from sgplan.interpreter import compiled_step
from sgplan.interpreter.compiled_step import CompilingSteps
from sgplan.interpreter.inner_step import InnerSteps

from .world import give_back_afterwards, watched

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")  # torch, while it compiles


class Told:
    """What the compiled steps said."""

    def __init__(self) -> None:
        self.compiles: list[str] = []
        self.refused: list[tuple[Optimizer, str]] = []
        self.wanted = True

    def compiled(self, optimizer: Optimizer, region: str, seconds: float, cache: str) -> None:
        assert seconds > 0
        assert cache in ("hit", "miss")
        self.compiles.append(region)

    def refuse(self, optimizer: Optimizer, why: str) -> None:
        self.refused.append((optimizer, why))


def install(steps: CompilingSteps) -> None:
    inner = InnerSteps()
    compiled_step.install(steps, watched(), inner)
    inner.install()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    give_back_afterwards(monkeypatch)
    found = Told()
    steps = CompilingSteps(
        lambda optimizer: found.wanted, lambda region: None, found.compiled, found.refuse
    )
    install(steps)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(7))]


Build = Callable[[list[nn.Parameter]], Optimizer]
Before = Callable[[Optimizer, int], None]


def trained(
    build: Build, steps: int = 6, before: Before = lambda optimizer, step: None
) -> tuple[Optimizer, list[nn.Parameter]]:
    parameters = weights()
    optimizer = build(parameters)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        before(optimizer, step)
        optimizer.step()
    return optimizer, parameters


def both(told: Told, build: Build, steps: int = 6, **kwargs: Any) -> tuple[Any, Any]:
    """The same run with compiled steps and as written."""
    compiled = trained(build, steps, **kwargs)
    told.wanted = False
    plain = trained(build, steps, **kwargs)
    told.wanted = True
    return compiled, plain


def close(one: tuple[Any, Any], other: tuple[Any, Any], tolerance: float = 1e-6) -> None:
    for a, b in zip(one[1], other[1], strict=True):
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


CASES: dict[str, Build] = {
    "adamw": lambda p: AdamW(p, lr=1e-3),
    "adam_amsgrad": lambda p: Adam(p, lr=1e-3, amsgrad=True, maximize=True),
    "sgd": lambda p: SGD(p, lr=1e-2),
    "sgd_nesterov": lambda p: SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    "rmsprop": lambda p: RMSprop(p, lr=1e-3),
}


@pytest.mark.parametrize("case", CASES)
def test_compiled_steps_are_those_of_torch(told: Told, case: str) -> None:
    compiled, plain = both(told, CASES[case])
    assert told.refused == []
    assert 1 <= len(told.compiles) <= 2
    close(compiled, plain)


def test_a_schedule_compiles_nothing_and_is_followed(told: Told) -> None:
    """B018: AdamW with LambdaLR each step, 20 steps."""
    seen: list[Any] = []

    def before(optimizer: Optimizer, step: int) -> None:
        if step == 0:
            schedules.append(LambdaLR(optimizer, lambda n: 0.8**n))
        else:
            schedules[-1].step()
        seen.append(optimizer.param_groups[0]["lr"])

    schedules: list[LambdaLR] = []
    compiled, plain = both(told, CASES["adamw"], 20, before=before)
    assert seen[:20] == seen[20:]  # and the script only ever sees numbers
    assert all(isinstance(rate, float) for rate in seen)
    assert len(told.compiles) <= 2
    close(compiled, plain)


def test_a_rate_that_is_a_tensor_stays_one(told: Told) -> None:
    """B020: a tensor lr and LambdaLR."""

    def build(parameters: list[nn.Parameter]) -> Optimizer:
        optimizer = AdamW(parameters, lr=torch.tensor(1e-3))
        schedules.append(LambdaLR(optimizer, lambda n: 0.8**n))
        return optimizer

    def before(optimizer: Optimizer, step: int) -> None:
        if step:
            schedules[-1].step()

    schedules: list[LambdaLR] = []
    compiled, plain = both(told, build, 10, before=before)
    assert isinstance(compiled[0].param_groups[0]["lr"], torch.Tensor)
    assert len(told.compiles) <= 2
    close(compiled, plain)


def test_a_rate_the_script_writes_is_used(told: Told) -> None:
    def before(optimizer: Optimizer, step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 if step == 4 else 1e-3

    compiled, plain = both(told, CASES["sgd"], before=before)
    close(compiled, plain)
    assert len(told.compiles) <= 2


def test_what_changes_beside_the_rate_is_used_too(told: Told) -> None:
    """OneCycleLR moves the momentum: torch compiles again until its limit, then says so."""

    def before(optimizer: Optimizer, step: int) -> None:
        if step == 0:
            schedules.append(OneCycleLR(optimizer, 0.1, total_steps=20))
        else:
            schedules[-1].step()

    schedules: list[OneCycleLR] = []
    compiled, plain = both(told, CASES["sgd_nesterov"], 14, before=before)
    close(compiled, plain)
    assert [why for _, why in told.refused] != []


def test_gradients_that_are_missing_in_a_step(told: Told) -> None:
    def before(optimizer: Optimizer, step: int) -> None:
        if step in (0, 3):
            optimizer.param_groups[0]["params"][1].grad = None

    compiled, plain = both(told, CASES["adamw"], before=before)
    close(compiled, plain)
    assert told.refused == []


def test_a_group_that_is_added_later(told: Told) -> None:
    def before(optimizer: Optimizer, step: int) -> None:
        if step == 3:
            extra.append(nn.Parameter(torch.ones(4)))
            optimizer.add_param_group({"params": [extra[-1]], "lr": 0.5})
        if step >= 3:
            extra[-1].grad = torch.ones(4) * step

    extra: list[nn.Parameter] = []
    compiled, plain = both(told, CASES["sgd"], before=before)
    close(compiled, plain)
    assert torch.equal(extra[0], extra[1])


def test_a_state_that_is_loaded_in_the_middle(told: Told) -> None:
    def before(optimizer: Optimizer, step: int) -> None:
        if step == 3:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    close(*both(told, CASES["adamw"], before=before))


def test_hooks_run_and_see_numbers(told: Told) -> None:
    seen: list[Any] = []

    def before(optimizer: Optimizer, step: int) -> None:
        if step == 0:
            hook = lambda optimizer, args, kwargs: seen.append(optimizer.param_groups[0]["lr"])  # noqa: E731
            optimizer.register_step_pre_hook(hook)
            optimizer.register_step_post_hook(hook)

    trained(CASES["adamw"], 3, before)
    # A tensor in float64 would be equal to the number.
    assert [(type(rate), rate) for rate in seen] == [(float, 1e-3)] * 6


def test_a_closure_stays_as_written(told: Told) -> None:
    parameters = weights()
    optimizer = AdamW(parameters, lr=1e-3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.stack([p.pow(2).sum() for p in parameters]).sum()
        loss.backward()
        return loss.detach()

    losses = [float(optimizer.step(closure)) for _ in range(3)]  # pyright: ignore[reportArgumentType]
    assert losses[2] < losses[0]
    assert [why for _, why in told.refused] == ["the script passes a closure"]


def test_others_are_named(told: Told) -> None:
    class Mine(AdamW):
        pass

    built = [Mine(weights()), LBFGS(weights())]
    assert [optimizer for optimizer, _ in told.refused] == built


def test_copies_and_pickles_are_as_plain(told: Told) -> None:
    optimizer, _ = trained(CASES["adamw"], 3)
    state = pickle.loads(pickle.dumps(optimizer.state_dict()))
    assert state["param_groups"] == optimizer.state_dict()["param_groups"]
    copied = copy.deepcopy(optimizer)
    for group in (*copied.param_groups, *state["param_groups"]):
        assert (type(group["lr"]), group["lr"]) == (float, 1e-3)


def test_two_optimizers_do_not_share_their_rates(told: Told) -> None:
    def pair() -> list[nn.Parameter]:
        parameters = weights()
        first, second = SGD(parameters[:1], lr=0.1), SGD(parameters[1:], lr=0.5)
        for _ in range(4):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            first.step()
            second.step()
        return parameters

    compiled = pair()
    told.wanted = False
    close((None, compiled), (None, pair()))


def test_what_the_plan_does_not_want_is_untouched(told: Told) -> None:
    told.wanted = False
    trained(CASES["adamw"], 3)
    assert (told.compiles, told.refused) == ([], [])


def test_autograd_still_follows_a_differentiable_step(told: Told) -> None:
    leaf = torch.ones(2, requires_grad=True)
    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=0.5, differentiable=True)
    weight = torch.ones(2, requires_grad=True).clone()
    optimizer.param_groups[0]["params"] = [weight]
    weight.grad = leaf * 1.0
    for _ in range(3):
        optimizer.step()
    (found,) = torch.autograd.grad(weight.sum(), leaf)
    assert torch.equal(found, torch.full((2,), -1.5))
    assert [why for _, why in told.refused] == ["the script passes `differentiable`"]


def test_where_nothing_may_be_compiled_all_step_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give_back_afterwards(monkeypatch)
    told = Told()
    install(
        CompilingSteps(
            lambda optimizer: told.wanted,
            lambda region: None,
            told.compiled,
            told.refuse,
            lambda optimizer: "`capture.engine = eager` compiles nothing",
        )
    )
    barred, plain = both(told, CASES["adamw"], 3)
    assert all(torch.equal(a, b) for a, b in zip(barred[1], plain[1], strict=True))
    assert told.compiles == []
    assert [why for _, why in told.refused] == ["`capture.engine = eager` compiles nothing"]
