"""`precision { loss_scale = … }`: one scale for each root, and steps skipped on an overflow.

The scale acts inside compiled graphs (`planner/capture/scale.py`); the script's gradients are
never scaled. An overflow leaves inf or nan in them, after the reduction hence on every rank alike,
so that ranks agree without a message. Such a step is carried out without gradients: no parameter
and no optimizer state moves, and the script has its gradients back afterwards.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sgplan.grammar.plan import Dynamic
from sgplan.interpreter import events
from sgplan.planner.capture.scale import ScaleLoss
from sgplan.planner.precision import LossScale, ever_scaled, loss_scale_at

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank
    from sgplan.interpreter.roots import Root


@dataclass(slots=True)
class Scale:
    """The scale of one root.

    Attributes:
        tensor: 0-dim, fp32, on the device of the root: what graphs read.
        value: of a dynamic scale, kept over stages without one.
        good: steps without an overflow since the scale last changed.
        setting: of the running step.
    """

    tensor: torch.Tensor
    value: float | None = None
    good: int = 0
    setting: LossScale = None
    overflowed: bool = False
    checked: bool = False

    def enter(self, setting: LossScale) -> None:
        """The next step runs under this setting."""
        self.setting = setting
        if isinstance(setting, Dynamic):
            self.value = setting.init if self.value is None else self.value
            self._set(self.value)
        else:
            self._set(1.0 if setting is None else setting)

    def settle(self) -> None:
        """A step is over: grow or back off, as `torch.amp.GradScaler` does."""
        if isinstance(self.setting, Dynamic) and self.value is not None and self.checked:
            self.good = 0 if self.overflowed else self.good + 1
            if self.overflowed:
                self.value *= self.setting.backoff
            elif self.good == self.setting.every:
                self.value *= self.setting.growth
                self.good = 0
        self.overflowed = self.checked = False

    def _set(self, value: float) -> None:
        # Graphs between their forward and backward hold the tensor. Each multiplies and divides
        # within its backward, by one value; it may change under them, unknown to autograd.
        self.tensor.data.fill_(value)


@dataclass(slots=True)
class _Hidden:
    """Gradients that an optimizer does not see in one step."""

    gradients: list[tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=list[tuple[torch.Tensor, torch.Tensor]]
    )

    def back(self) -> None:
        for parameter, gradient in self.gradients:
            parameter.grad = gradient


class LossScales:
    """The scales of one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._scales: dict[str, Scale] = {}
        self._hidden: weakref.WeakKeyDictionary[Optimizer, _Hidden] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Look at gradients before every optimizer's step."""
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def scaling(self, root: Root | None) -> ScaleLoss | None:
        """The pass for the graphs of a root; None where the plan or the script wants none."""
        if root is None or not ever_scaled(self._rank.plan, root.name):
            return None
        if why := self._script_scales():
            self._rank.once(
                events.NoteAdded, "loss scale", f"{why}: the loss scale is left to the script"
            )
            return None
        if root.name not in self._scales:
            device = root.parameters[0][1].device
            scale = Scale(torch.ones((), dtype=torch.float32, device=device))
            scale.enter(loss_scale_at(self._rank.plan, root.name, self._rank.steps.step))
            self._scales[root.name] = scale
        return ScaleLoss(self._scales[root.name].tensor)

    def _script_scales(self) -> str:
        if self._rank.steps.scaler_built:
            return "the script has a GradScaler of its own"
        if any(torch.is_autocast_enabled(kind) for kind in ("cpu", self._rank.device)):
            return "the script uses autocast"
        return ""

    def step_ended(self, ended: int) -> None:
        """Every scale moves on.

        Args:
            ended: steps that are over.
        """
        for name, scale in self._scales.items():
            scale.settle()
            scale.enter(loss_scale_at(self._rank.plan, name, ended))

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._hidden.pop(optimizer, None)
        running = {n: s for n, s in self._scales.items() if s.setting is not None}
        if not running:
            return
        if given_closure(args, kwargs) is not None:
            what = f"{type(optimizer).__name__} is given a closure: overflows are not looked for"
            self._rank.once(events.NoteAdded, "loss scale", what)
            return
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        owned = {
            name: [p for _, p in self._rank.root_named(name).parameters if id(p) in mine]
            for name in running
        }
        gradients = [p.grad for found in owned.values() for p in found if p.grad is not None]
        if not gradients:
            return
        finite = torch.isfinite(torch.nn.utils.get_total_norm(gradients, float("inf"))).item()
        for name, found in owned.items():
            running[name].checked |= bool(found)
            running[name].overflowed |= bool(found) and not finite
        if finite:
            return
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        hidden = _Hidden([(p, p.grad) for p in everything if p.grad is not None])
        for parameter, _ in hidden.gradients:
            parameter.grad = None
        self._hidden[optimizer] = hidden
        if self._rank.steps.is_leading(optimizer):
            self._rank.steps.overflowed = True

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        hidden = self._hidden.pop(optimizer, None)
        if hidden is not None:
            hidden.back()


def given_closure(args: Any, kwargs: Any) -> Any:
    """The closure of a call `optimizer.step(…)`; None without one.

    Args:
        args: the optimizer first.
    """
    return args[1] if len(args) > 1 else kwargs.get("closure")
