"""`precision { loss_scale = … }`: one scale for each root, and steps skipped on an overflow.

The scale acts inside compiled graphs (`planner/capture/scale.py`); the script's gradients are
never scaled. An overflow leaves inf or nan in them, after the reduction hence on every rank alike,
so that ranks agree without a message. The optimizer's inner step is left out then: no parameter and
no state moves. Where nothing looks at the gradients, the scale is 1, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from sgplan.grammar.plan import Dynamic
from sgplan.interpreter import events
from sgplan.interpreter.inner_step import Step, given_closure
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
        overflowed, checked: in the running step.
        moved: whether an optimizer moves the parameters of the root.
    """

    tensor: torch.Tensor
    value: float | None = None
    good: int = 0
    setting: LossScale = None
    overflowed: bool = False
    checked: bool = False
    moved: bool = False

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


class LossScales:
    """The scales of one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._scales: dict[str, Scale] = {}

    def install(self) -> None:
        """Look at gradients before every optimizer's inner step."""
        blocks = self._rank.plan.precisions
        if not any(b.computes_fp16 or not isinstance(b.loss_scale, str) for b in blocks):
            return
        self._rank.inner_steps.add(self.around)
        self._rank.steps.on_built.append(lambda optimizer: self._enter())
        self._rank.steps.on_scaler.append(self._scaler_built)

    def scaling(self, root: Root | None) -> ScaleLoss | None:
        """The pass for the graphs of a root; None where the plan or the script wants none."""
        if root is None or not ever_scaled(self._rank.plan, root.name):
            return None
        if why := self._script_scales():
            self._left_to_the_script(why)
            return None
        if root.name not in self._scales:
            device = root.parameters[0][1].device
            scale = Scale(torch.ones((), dtype=torch.float32, device=device))
            self._scales[root.name] = scale
            scale.enter(self._setting(root.name, scale))
        return ScaleLoss(self._scales[root.name].tensor)

    def now(self, root: str) -> float | None:
        """The scale of a root's loss in the running step; None where it is not scaled."""
        scale = self._scales.get(root)
        if scale is None or scale.setting is None:
            return None
        return scale.value if isinstance(scale.setting, Dynamic) else scale.setting

    def _script_scales(self) -> str:
        if self._rank.steps.scaler_built:
            return "the script has a GradScaler of its own"
        if any(torch.is_autocast_enabled(kind) for kind in ("cpu", self._rank.device)):
            return "the script uses autocast"
        return ""

    def _left_to_the_script(self, why: str) -> None:
        what = f"{why}: the loss scale is left to the script"
        self._rank.once(events.NoteAdded, "loss scale", what)

    def _scaler_built(self) -> None:
        """Graphs that are compiled by now go on without a scale."""
        if self._scales:
            self._left_to_the_script(self._script_scales())
            self._enter()

    # --- settings --------------------------------------------------------------------------------

    def step_ended(self, ended: int) -> None:
        """Every scale moves on.

        Args:
            ended: steps that are over.
        """
        for name, scale in self._scales.items():
            if self._asked(name, None) is not None and not self._looked_at(name, scale):
                what = f"no optimizer of torch moves `{name}`: its loss is not scaled"
                self._rank.once(events.NoteAdded, "loss scale", what)
            scale.settle()
        self._enter(ended)

    def _enter(self, step: int | None = None) -> None:
        for name, scale in self._scales.items():
            scale.enter(self._setting(name, scale, step))

    def _setting(self, name: str, scale: Scale, step: int | None = None) -> LossScale:
        """What the plan asks of a root's scale in a step, the running one unless given.

        None where nothing looks at its gradients: an overflow would reach the parameters.
        """
        asked = self._asked(name, step)
        return None if asked is None or not self._looked_at(name, scale) else asked

    def _asked(self, name: str, step: int | None) -> LossScale:
        rank = self._rank
        if rank.steps.scaler_built:
            return None
        ended = rank.steps.step if step is None else step
        return loss_scale_at(rank.plan, name, ended + rank.stage_offset)

    def _looked_at(self, name: str, scale: Scale) -> bool:
        if not scale.moved:
            parameters = self._rank.root_named(name).parameters
            scale.moved = self._rank.steps.moves(p for _, p in parameters)
        return scale.moved

    # --- steps -----------------------------------------------------------------------------------

    def around(self, below: Step, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """A layer of the inner step: an overflow leaves the step below out."""
        running = self._running(optimizer)
        if not running:
            return below(optimizer, *args, **kwargs)
        if given_closure(args, kwargs) is not None:
            name = type(optimizer).__name__
            what = (
                f"{name} is given a closure: its loss is not scaled, overflows are not looked for"
            )
            self._rank.once(events.NoteAdded, "loss scale", what)
            with _at_rest(scale for scale, _ in running):
                return below(optimizer, *args, **kwargs)
        gradients = [p.grad for _, found in running for p in found if p.grad is not None]
        if not gradients:
            return below(optimizer, *args, **kwargs)
        finite = all_finite(gradients)
        for scale, _ in running:
            scale.checked = True
            scale.overflowed |= not finite
        if finite:
            return below(optimizer, *args, **kwargs)
        if self._rank.steps.is_leading(optimizer):
            self._rank.steps.overflowed = True
        return None

    def _running(self, optimizer: Optimizer) -> list[tuple[Scale, list[torch.nn.Parameter]]]:
        """Scales that act in this step, each with the parameters of its root that it moves."""
        acting = {n: s for n, s in self._scales.items() if s.setting is not None}
        if not acting:
            return []
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        found = (
            (scale, [p for _, p in self._rank.root_named(name).parameters if id(p) in mine])
            for name, scale in acting.items()
        )
        return [(scale, parameters) for scale, parameters in found if parameters]


@contextmanager
def _at_rest(scales: Iterable[Scale]) -> Iterator[None]:
    """Scales of 1, for backwards within an optimizer's step."""
    held = [(scale, scale.setting) for scale in scales]
    for scale, _ in held:
        scale.enter(None)
    try:
        yield
    finally:
        for scale, setting in held:
            scale.enter(setting)


def all_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no tensor has an element that is infinite or no number; one read by the host."""
    values = [t.coalesce().values() if t.layout is torch.sparse_coo else t for t in tensors]
    norms = torch.nn.utils.get_total_norm([v for v in values if v.numel()], float("inf"))
    return bool(torch.isfinite(norms).item())
