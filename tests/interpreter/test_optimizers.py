from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from sgplan.interpreter import events, optimizers
from sgplan.interpreter.compiled_step import CompilingSteps
from sgplan.interpreter.optimizers import Fusing

from .world import rank_under, root_of, watched

pytestmark = pytest.mark.usefixtures("patched")


class Told:
    """What the constructors told."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.built: list[Optimizer] = []
        self.refused: list[tuple[Optimizer, str]] = []

    def wanted(self, parameters: Any) -> bool:
        self.asked.append([t for entry in parameters for t in optimizers._tensors_of(entry)])
        return True

    def refuse(self, optimizer: Optimizer, why: str) -> None:
        self.refused.append((optimizer, why))


@pytest.fixture
def told(patched: None) -> Told:
    found = Told()
    optimizers.install(Fusing(found.wanted, found.built.append, found.refuse), watched())
    return found


def net() -> nn.Module:
    return nn.Linear(3, 2)


@pytest.mark.parametrize("cls", optimizers.FUSIBLE)
def test_a_stock_optimizer_is_built_fused(told: Told, cls: Callable[..., Optimizer]) -> None:
    found = cls(net().parameters(), lr=0.1)
    assert found.defaults["fused"] is True
    assert told.built == [found]
    assert told.refused == []


@pytest.mark.parametrize("choice", ["foreach", "capturable", "differentiable", "fused"])
def test_what_the_script_chose_stays(told: Told, choice: str) -> None:
    chosen: dict[str, Any] = {choice: True}
    found = AdamW(net().parameters(), **chosen)
    assert told.built == []
    assert told.refused == [(found, f"the script passes `{choice}`")]
    assert found.defaults[choice] is True


@pytest.mark.parametrize("value", [None, False])
def test_a_choice_that_leaves_it_open_is_none(told: Told, value: bool | None) -> None:
    found = AdamW(net().parameters(), foreach=value)
    assert found.defaults["fused"] is True
    assert told.built == [found]


def test_fused_none_leaves_it_open(told: Told) -> None:
    found = AdamW(net().parameters(), fused=None)
    assert found.defaults["fused"] is True


def test_fused_false_is_a_choice(told: Told) -> None:
    found = AdamW(net().parameters(), fused=False)
    assert found.defaults["fused"] is False
    assert told.refused == [(found, "the script passes `fused`")]


def test_a_generator_is_read_once(told: Told) -> None:
    module = net()
    found = AdamW(parameter for parameter in module.parameters())
    assert len(found.param_groups[0]["params"]) == 2
    assert len(told.asked[0]) == 2


def test_a_generator_in_a_group_is_read_once(told: Told) -> None:
    module = net()
    groups = [{"params": (p for p in module.parameters()), "lr": 0.3}]
    found = SGD(groups, lr=0.1)
    assert len(found.param_groups[0]["params"]) == 2
    assert found.param_groups[0]["lr"] == 0.3
    assert all(a is b for a, b in zip(told.asked[0], module.parameters(), strict=True))


def test_a_group_of_one_tensor_is_one_parameter(told: Told) -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    SGD([{"params": weight}], lr=0.1)
    (found,) = told.asked[0]
    assert found is weight


def test_named_parameters_keep_their_names(told: Told) -> None:
    module = net()
    found = AdamW(module.named_parameters())
    assert found.param_groups[0]["param_names"] == ["weight", "bias"]
    assert all(a is b for a, b in zip(told.asked[0], module.parameters(), strict=True))


def test_positional_arguments_mean_the_same(told: Told) -> None:
    found = SGD(net().parameters(), 0.1, 0.9)
    assert found.defaults["momentum"] == 0.9
    assert found.defaults["fused"] is True


def test_a_subclass_stays_as_written(told: Told) -> None:
    class Mine(AdamW):
        pass

    found = Mine(net().parameters())
    assert not found.defaults["fused"]
    assert told.refused == [(found, "`Mine` has no fused form that sgplan knows")]


def test_another_class_stays_as_written(told: Told) -> None:
    found = RMSprop(net().parameters())
    assert told.refused == [(found, "`RMSprop` has no fused form that sgplan knows")]


def test_parameters_that_cannot_be_fused_leave_it_as_written(told: Told) -> None:
    found = Adam([nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    assert not found.defaults["fused"]
    assert told.built == []
    ((refused, why),) = told.refused
    assert refused is found
    assert "fused" in why


def test_an_optimizer_refused_after_a_trial_is_counted_once(told: Told) -> None:
    watch = watched()
    found = Adam([nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    assert watch.optimizers() == [found]


def test_what_the_plan_does_not_want_is_untouched(patched: None) -> None:
    told = Told()
    optimizers.install(Fusing(lambda parameters: False, told.built.append, told.refuse), watched())
    found = AdamW(net().parameters())
    assert found.defaults["fused"] is None
    RMSprop(net().parameters())
    assert (told.built, told.refused) == ([], [])


@pytest.mark.parametrize("arguments", [(), (torch.ones(2),), (None,)])
def test_wrong_arguments_fail_in_torchs_words(told: Told, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"params|iterable|argument"):
        AdamW(*arguments)


def test_fused_and_plain_steps_are_close(told: Told) -> None:
    def trained(build: Callable[[Any], Optimizer]) -> torch.Tensor:
        weight = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = build([weight])
        for _ in range(3):
            optimizer.zero_grad()
            weight.pow(2).sum().backward()
            optimizer.step()
        return weight.detach()

    fused = trained(lambda p: AdamW(p, lr=0.1))
    plain = trained(lambda p: AdamW(p, lr=0.1, foreach=True))
    torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-7)


class Late:
    """The optimizers of a rank whose model becomes known after they were built."""

    def __init__(self, folder: Path, wish: str) -> None:
        name = f"{Net.__module__}:{Net.__qualname__}"
        body = f'model "G" {{ is = "{name}" }}\nupdate {{ model = "G"  optimizer = {wish} }}'
        self.rank, self.kept = rank_under(folder, body)
        self.found = self.rank.optimizers
        self.rank.steps.install()
        fusing = Fusing(self.found.wants_fused, self.found.fused_built, self.found.cannot_follow)
        optimizers.install(fusing, self.rank.steps)
        steps = CompilingSteps(
            self.found.wants_compiled,
            self.found.step_compiles,
            self.found.step_compiled,
            self.found.cannot_follow,
            self.found.barred,
        )
        self.found.objection = steps.objection

    def fallen_back(self) -> list[tuple[str, str]]:
        return [(event.what, event.why) for event in self.kept.of(events.FallbackTaken)]


class Net(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)


LATE = "it was built before the script made `G` known (DDP, torch.compile)"


class Mine(AdamW):
    pass


@pytest.mark.parametrize(
    ("wish", "cls", "told"),
    [
        ("fused", AdamW, [("AdamW as written", LATE)]),
        ("fused", Mine, [("Mine as written", "`Mine` has no fused form that sgplan knows")]),
        ("compiled", AdamW, []),
        (
            "compiled",
            Mine,
            [("Mine as written", "`Mine` is no optimizer of torch that sgplan compiles")],
        ),
    ],
)
def test_what_one_model_wants_is_judged_when_it_is_known(
    wish: str, cls: type[Optimizer], told: list[tuple[str, str]], tmp_path: Path
) -> None:
    late, module = Late(tmp_path, wish), Net()
    made: Any = cls
    optimizer = made(module.parameters())
    assert late.fallen_back() == []
    late.rank.add_root(root_of(module, name="G"))
    assert late.fallen_back() == told
    wanted = "compiled" if wish == "compiled" and not told else "as_written"
    assert late.found.fact(optimizer).kind == wanted


def test_a_model_that_the_script_compiles_is_known_before_it_trains(tmp_path: Path) -> None:
    late, module = Late(tmp_path, "fused"), Net()
    late.rank.compiled.add(module)
    optimizer = AdamW(module.parameters())
    assert optimizer.defaults["fused"] is True
    late.rank.add_root(root_of(module, name="G"))
    assert late.fallen_back() == []


def test_a_step_of_an_eager_model_is_not_compiled(tmp_path: Path) -> None:
    name = f"{Net.__module__}:{Net.__qualname__}"
    body = f'model "G" {{ is = "{name}" }}\ncapture {{ model = "G"  engine = eager }}'
    rank, _ = rank_under(tmp_path, f"{body}\nupdate {{ optimizer = compiled }}")
    module, other = Net(), nn.Linear(2, 2)
    rank.roots += [root_of(module, name="G"), root_of(other, name="D")]
    barred = rank.optimizers.barred
    assert barred(AdamW(module.parameters())) == "`capture.engine = eager` compiles nothing"
    assert barred(AdamW(other.parameters())) == ""
