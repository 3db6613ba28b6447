"""What a step is, and what is measured in it.

A step ends when the leading optimizer (the one with most parameter elements) steps, or its
GradScaler skips it; without an optimizer at the first forward after a backward, or at the end of
the script.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from sgplan.interpreter.events import StepFinished
from sgplan.planner import torch_api


class StepWatch:
    """Counts steps and adds up what happened in each.

    Attributes:
        step: steps ended so far.
        samples: dim 0 of the leading root's inputs in this step.
        own: seconds in our own Python since the last step ended, copies and collectives excluded.
        wait: seconds blocked in `wait` in this step.
        in_graph, by_hooks: reductions begun in this step, by how their gradients came.
        on_end: called when a step has ended and was reported.
        on_update: told of every optimizer whose step is over, and whether a step ends with it.
        on_built: each is told of each optimizer, once its constructor has run.
        on_scaler: called when the script has built a GradScaler that is enabled.
        scaler_built: whether the script has a GradScaler that is enabled.
        overflowed: whether this step moves nothing, because gradients are infinite.
    """

    __slots__ = (
        "__weakref__",
        "_backward_seen",
        "_began",
        "_emit",
        "_ended",
        "_in_scaler",
        "_leading",
        "_loss",
        "_optimizers",
        "by_hooks",
        "in_graph",
        "on_built",
        "on_end",
        "on_scaler",
        "on_update",
        "overflowed",
        "own",
        "samples",
        "scaler_built",
        "step",
        "wait",
    )

    def __init__(self, emit: Callable[..., None], ended: Callable[[], None]) -> None:
        self._emit = emit
        self._ended = ended
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._leading: weakref.ref[Optimizer] | None = None
        self._began: float | None = None
        self._loss: torch.Tensor | float | None = None
        self._backward_seen = False
        self._in_scaler = False
        self.on_end: Callable[[], None] | None = None
        self.on_update: Callable[[Optimizer, bool], None] | None = None
        self.on_built: list[Callable[[Optimizer], None]] = []
        self.on_scaler: list[Callable[[], None]] = []
        self.scaler_built = False
        self.overflowed = False
        self.step = 0
        self.samples = 0
        self.own = 0.0
        self.wait = 0.0
        self.in_graph = self.by_hooks = 0

    def install(self) -> None:
        """Hook every optimizer and GradScaler of the process."""
        _wrap_init(self)
        register_optimizer_step_post_hook(self._stepped)
        _wrap_scaler(self)

    # --- what the script does --------------------------------------------------------------------

    def built(self, optimizer: Optimizer) -> None:
        """An optimizer's constructor has run, perhaps for the second time."""
        if any(known is optimizer for known in self.optimizers()):
            return
        self._optimizers.append(weakref.ref(optimizer))
        self._leading = None
        for told in self.on_built:
            told(optimizer)

    def optimizers(self) -> list[Optimizer]:
        """Those alive, in the order in which they were built."""
        return [found for ref in self._optimizers if (found := ref()) is not None]

    def moves(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether an optimizer has one of these parameters."""
        groups = (group for optimizer in self.optimizers() for group in optimizer.param_groups)
        held = {id(p) for group in groups for p in group["params"]}
        return any(id(parameter) in held for parameter in parameters)

    def forward(self, samples: int, *, leading: bool) -> bool:
        """A root was called with gradients enabled; returns whether a step ended with that."""
        if self._began is None:
            self._began = perf_counter()
        ends = self._backward_seen and not self.optimizers()
        if ends:
            self.end(skipped=False)
        if leading:
            self.samples += samples
        return ends

    def backward(self, loss: torch.Tensor | None, *, leading: bool) -> None:
        """A backward returned; `loss` is its root tensor."""
        self._backward_seen = True
        if leading and loss is not None:
            self._loss = _value(loss) if loss.dim() == 0 else None

    def is_leading(self, optimizer: Optimizer) -> bool:
        if self._leading is None or self._leading() is None:
            best = max(self.optimizers(), key=elements, default=None)
            self._leading = None if best is None else weakref.ref(best)
        return self._leading is not None and self._leading() is optimizer

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        ends = not self._in_scaler and self._backward_seen and self.is_leading(optimizer)
        if self.on_update is not None:
            self.on_update(optimizer, ends)
        if ends:
            self.end(skipped=self.overflowed)

    def end(self, *, skipped: bool) -> None:
        """Close the running step and open the next."""
        now = perf_counter()
        seconds = 0.0 if self._began is None else now - self._began
        self._ended()
        self.step += 1
        told = (self.step, seconds, self.wait, self.own, self.samples, self._loss, skipped)
        self._emit(StepFinished, *told, self.in_graph, self.by_hooks)
        self._began = now
        self._loss = None
        self._backward_seen = self.overflowed = False
        self.samples = 0
        self.wait = 0.0
        self.in_graph = self.by_hooks = 0
        if self.on_end is not None:
            self.on_end()
        self.own = perf_counter() - now  # the end of a step is told with the next one

    def script_ends(self) -> None:
        """Without an optimizer the last step ends here."""
        if self._backward_seen and not self.optimizers():
            self.end(skipped=False)


def _value(loss: torch.Tensor) -> torch.Tensor | float:
    """A 0-dim loss as it is now; on an accelerator read later, because reading waits for it.

    So is one of another class: a fake tensor refuses to be read, a distributed one communicates.
    """
    if type(loss) is torch.Tensor and loss.is_cpu and isinstance(value := loss.item(), float):
        return value
    return loss.detach().clone()


def elements(optimizer: Optimizer) -> int:
    """Elements of all parameters of an optimizer."""
    return sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def _wrap_init(watch: StepWatch) -> None:
    original = Optimizer.__init__

    @functools.wraps(original)
    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch.built(self)

    Optimizer.__init__ = init


def _wrap_scaler(watch: StepWatch) -> None:
    """GradScaler decides whether a step happens; a fused optimizer is called either way."""
    from torch.amp.grad_scaler import GradScaler

    original = GradScaler.step
    build = GradScaler.__init__

    @functools.wraps(build)
    def init(self: GradScaler, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        if not self.is_enabled():
            return
        watch.scaler_built = True
        for told in watch.on_scaler:
            told()

    @functools.wraps(original)
    def step(self: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not self.is_enabled() or not watch.is_leading(optimizer):
            return original(self, optimizer, *args, **kwargs)
        watch._in_scaler = True
        try:
            result = original(self, optimizer, *args, **kwargs)
        finally:
            watch._in_scaler = False
        watch.end(skipped=torch_api.found_inf(self, optimizer))
        return result

    GradScaler.__init__ = init
    GradScaler.step = step
