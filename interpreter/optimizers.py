"""`update { optimizer = fused }`: build stock optimizers with `fused=True`, say which cannot be.

Only where the script left the choice to torch: a stock class, built without `foreach`, `fused`,
`capturable` or `differentiable`. A fused step rounds differently; the plan says so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

FUSIBLE: tuple[type[Optimizer], ...] = (Adam, AdamW, SGD, Adagrad)
_CHOICES = ("foreach", "fused", "capturable", "differentiable")


@dataclass(frozen=True, slots=True)
class Fusing:
    """What the constructors ask and tell.

    Attributes:
        wanted: whether the plan asks for a fused optimizer over these parameters.
        built: told of an optimizer that was built fused by the plan.
        refused: told of an optimizer that stays as written, and why.
    """

    wanted: Callable[[Any], bool]
    built: Callable[[Optimizer], None]
    refused: Callable[[Optimizer, str], None]


def install(fusing: Fusing) -> None:
    """Patch the constructors of the fusible classes, and watch the others."""
    for cls in FUSIBLE:
        _patch(cls, fusing)
    _report_others(fusing)


def _patch(cls: type[Optimizer], fusing: Fusing) -> None:
    original: Callable[..., None] = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        if type(self) is not cls or isinstance(given.get("params"), (torch.Tensor, type(None))):
            return original(self, *args, **kwargs)
        # A generator can be read only once, and we look before torch does.
        given["params"] = list(given["params"])
        rest = {name: value for name, value in given.items() if name != "self"}
        if not fusing.wanted(given["params"]):
            return original(self, **rest)
        why = _objection(given)
        if not why:
            try:
                original(self, **rest, fused=True)
                return fusing.built(self)
            except RuntimeError as error:
                why = str(error)
        original(self, **rest)
        return fusing.refused(self, why)

    cls.__init__ = init


def _objection(given: dict[str, Any]) -> str:
    for name in _CHOICES:
        if given.get(name) not in (None, False):
            return f"the script passes `{name}`"
    return ""


def _report_others(fusing: Fusing) -> None:
    original = Optimizer.__init__

    @functools.wraps(original)
    def init(self: Optimizer, params: Any, *args: Any, **kwargs: Any) -> None:
        original(self, params, *args, **kwargs)
        if type(self) not in FUSIBLE and fusing.wanted(self.param_groups):
            fusing.refused(self, f"`{type(self).__name__}` has no fused form that sgplan knows")

    Optimizer.__init__ = init
