"""`update { optimizer = compiled }`: a stock optimizer's step as one compiled graph.

What is compiled is torch's own step below its hooks (a layer of the inner step), so hooks,
schedulers and GradScaler see what they always saw. The learning rate enters the graph as a tensor
that holds the group's number for the time of the step: a schedule compiles nothing. The first step
runs as written, because it makes the state that the graph takes. What cannot be compiled stays as
written, and that is said.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import FunctionType
from typing import Any

import torch
import torch.optim
from torch.optim import LBFGS, Optimizer, SparseAdam

from sgplan.interpreter.inner_step import InnerSteps, Step, given_closure
from sgplan.interpreter.steps import StepWatch
from sgplan.planner import torch_api

# Missing gradients or a group that is added need a graph of their own; a number that moves in every
# step, as betas under OneCycleLR, needs one in each step.
COMPILES = 4
_NOT_COMPILED = (Optimizer, LBFGS, SparseAdam)
STOCK: tuple[type[Optimizer], ...] = tuple(
    cls
    for cls in vars(torch.optim).values()
    if isinstance(cls, type) and issubclass(cls, Optimizer) and cls not in _NOT_COMPILED
)


@dataclass(frozen=True, slots=True)
class CompilingSteps:
    """What the compiled steps ask and tell.

    Attributes:
        wanted: whether the plan asks for a compiled step of this optimizer.
        began: a compile of this region begins.
        compiled: it took so many seconds; the compiler's cache had it (`hit`) or not (`miss`).
        refused: told of an optimizer whose step stays as written, and why.
        barred: why the plan compiles no step of this optimizer; empty when it may be compiled.
    """

    wanted: Callable[[Optimizer], bool]
    began: Callable[[str], None]
    compiled: Callable[[Optimizer, str, float, str], None]
    refused: Callable[[Optimizer, str], None]
    barred: Callable[[Optimizer], str] = lambda optimizer: ""

    def objection(self, optimizer: Optimizer) -> str:
        """Why the step of an optimizer stays as written from the start; empty when it need not."""
        if type(optimizer) not in STOCK:
            return f"`{type(optimizer).__name__}` is no optimizer of torch that sgplan compiles"
        # Autograd follows such a step; the compiled one runs below autograd.
        if optimizer.defaults.get("differentiable"):
            return "the script passes `differentiable`"
        return self.barred(optimizer)


def install(steps: CompilingSteps, watch: StepWatch, inner_steps: InnerSteps) -> None:
    """Compile inner steps of the stock classes, within the layers there are, and hear of others."""
    chosen: weakref.WeakKeyDictionary[Optimizer, _Step | None] = weakref.WeakKeyDictionary()

    def around(below: Step, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if optimizer not in chosen:
            first = steps.wanted(optimizer) and not steps.objection(optimizer)
            chosen[optimizer] = _Step(optimizer, steps) if first else None
            if first:  # it makes the state
                return below(optimizer, *args, **kwargs)
        compiled = chosen[optimizer]
        if compiled is None:
            return below(optimizer, *args, **kwargs)
        closure = given_closure(args, kwargs)
        why = "the script passes a closure" if closure is not None else compiled.run(optimizer)
        if not why:
            return None
        chosen[optimizer] = None
        steps.refused(optimizer, why)
        return below(optimizer, *args, **kwargs)

    def built(optimizer: Optimizer) -> None:
        if steps.wanted(optimizer) and (why := steps.objection(optimizer)):
            steps.refused(optimizer, why)

    inner_steps.add(around)
    watch.on_built.append(built)


class _Step:
    """The compiled step of one optimizer; holds no reference to it."""

    def __init__(self, optimizer: Optimizer, steps: CompilingSteps) -> None:
        self._steps = steps
        self._name = f"{type(optimizer).__name__}.step"
        self._owner = weakref.ref(optimizer)
        self._rates: list[torch.Tensor] = []
        true = _undecorated(type(optimizer))
        # A code object of its own: Dynamo keeps what it compiled, and its limit, by code object.
        code = true.__code__.replace(co_name=self._name)
        own = FunctionType(code, true.__globals__, self._name, true.__defaults__, true.__closure__)
        self._call: Any = torch_api.plain_compile(own, self._backend, COMPILES)

    def _backend(self, gm: Any, inputs: Any) -> Any:
        self._steps.began(self._name)
        began, hits = perf_counter(), torch_api.graph_cache_hits()
        code = torch_api.compile_fx(gm, inputs)
        optimizer = self._owner()
        if optimizer is not None:
            cache = "hit" if torch_api.graph_cache_hits() > hits else "miss"
            self._steps.compiled(optimizer, self._name, perf_counter() - began, cache)
        return code

    def run(self, optimizer: Optimizer) -> str:
        """One step; returns why it could not be compiled, with nothing changed, else empty."""
        groups = optimizer.param_groups
        written = [group.get("lr") for group in groups]
        while len(self._rates) < len(groups):
            self._rates.append(torch.zeros((), dtype=torch.float64))
        for group, rate in zip(groups, self._rates, strict=False):
            if isinstance(group.get("lr"), float | int):
                group["lr"] = rate.fill_(group["lr"])
        try:
            with torch.no_grad():
                self._call(optimizer)
        except torch_api.compile_errors() as error:
            why = str(error.__cause__ or error).strip().splitlines()[0]
            if isinstance(error, torch_api.recompile_limit_error()):
                why = f"after {COMPILES} compiles its numbers, groups or gradients are new again"
            return f"its step cannot be compiled: {why}"
        finally:
            for group, lr in zip(groups, written, strict=True):
                if lr is not None:
                    group["lr"] = lr
        return ""


def _undecorated(cls: type[Optimizer]) -> FunctionType:
    """A class's step below its hooks and its switch of gradient mode."""
    step: Any = cls.step
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step
