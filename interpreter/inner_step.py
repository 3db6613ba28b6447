"""An optimizer's inner step: what torch runs between the hooks of a step.

Layers stand around it, the first one outermost. The hooks of a script see what they would see
without a plan, whoever registered them and when: parameters, gradients and numbers of groups are in
their place before and after. Every class is reached, as torch wraps each of them in one place when
its first optimizer is built. Without a layer nothing is patched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

Step = Callable[..., Any]
"""Called with the optimizer and the arguments of its `step`."""

Layer = Callable[..., Any]
"""Called with the step below, the optimizer and the arguments; may leave the step below out."""


class InnerSteps:
    """The layers of one rank."""

    def __init__(self) -> None:
        self._layers: list[Layer] = []
        self._inside: set[int] = set()

    def add(self, layer: Layer) -> None:
        """One more layer, within those added before; to be called before `install`."""
        self._layers.append(layer)

    def install(self) -> None:
        """Patch where torch wraps a class's step, and the classes that are wrapped already."""
        if not self._layers:
            return
        wrap = Optimizer.profile_hook_step

        def profile_hook_step(func: Step) -> Step:
            return wrap(self._layered(func))

        for cls in _below(Optimizer):
            step: Any = vars(cls).get("step")
            if getattr(step, "hooked", None):
                hooked: Any = profile_hook_step(step.__wrapped__)
                hooked.hooked = True
                cls.step = hooked
        Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    def _layered(self, func: Step) -> Step:
        layered = func
        for layer in reversed(self._layers):
            layered = functools.partial(layer, layered)

        # What Dynamo cannot follow is ours; it still compiles the frames below.
        @torch.compiler.disable(recursive=False)
        @functools.wraps(func)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            key = id(optimizer)
            if key in self._inside:  # a subclass calls the step that it extends
                return func(optimizer, *args, **kwargs)
            self._inside.add(key)
            try:
                return layered(optimizer, *args, **kwargs)
            finally:
                self._inside.discard(key)

        return step


def given_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The closure among the arguments of a step; None without one."""
    first = args[0] if args else kwargs.get("closure")
    return first if callable(first) else None


def _below(cls: type) -> Iterator[type]:
    for inner in cls.__subclasses__():
        yield inner
        yield from _below(inner)
