"""Inputs enlarged to a size that a guard allows, and outputs cut back before the script sees them.

That this changes nothing is proved on the graph of every allowed size when it is compiled
(`planner/capture/rows.py`), with the number of rows as a symbol; what enlarging and cutting need is
kept from that proof.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Guard, Interval, Pad
from sgplan.interpreter.guard_values import tensors
from sgplan.interpreter.guards import Guards
from sgplan.planner import torch_api
from sgplan.planner.capture.rows import Inputs, NotProved, Outcome, Rows, prove

# (what varies, what looks at the graph, args, kwargs): traces a call and runs nothing
Trace = Callable[[Mapping[str, Sequence[bool]], Callable[[Any], None], Any, Any], None]

_SOURCE = re.compile(r"L\['(args|kwargs)'\]")


@dataclass(frozen=True, slots=True)
class _Fill:
    """A dim of an argument, and what its added rows hold."""

    dim: int
    value: float


class Padding:
    """What a guard with `otherwise = pad(…)` does for one module."""

    def __init__(self, guards: Guards, guard: Guard, module: nn.Module, trace: Trace) -> None:
        assert isinstance(guard.otherwise, Pad)
        self._guards = guards
        self._guard = guard
        self._pad: Pad = guard.otherwise
        self._names = list(inspect.signature(module.forward).parameters)
        self._fills: dict[str, _Fill] = {}
        self._outcomes: dict[tuple[int, bool], Outcome] = {}
        self._module = module
        self._trace = trace

    def target(self, size: Any, allowed: list[Any]) -> int | None:
        """The smallest allowed size that holds `size`; None when it is larger than all."""
        if type(size) is not int:
            return None
        allow = self._guard.allow
        if isinstance(allow, Interval):
            return allow.low if allow.low is not None and size < allow.low else None
        return min((known for known in allowed if known >= size), default=None)

    # --- the proof -------------------------------------------------------------------------------

    def prove(self, size: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prove padding to `size`, once for each mode of the model; a failure ends the rank."""
        key = (size, self._module.training)
        if key in self._outcomes or type(size) is not int:
            return
        fills = self._found_fills(size, args, kwargs)
        varying = {
            source: [dim == fills[source].dim for dim in range(tensor.dim())]
            for source, tensor in tensors(args, kwargs)
            if source in fills
        }

        def proved(gm: Any) -> None:
            try:
                self._outcomes[key] = self._proved(gm, fills)
            except NotProved as error:
                self._refuse(str(error))

        try:
            self._trace(varying, proved, args, kwargs)
        except torch_api.graph_break_error() as error:
            self._refuse(f"the graph breaks: {str(error).strip().splitlines()[0]}")
        self._fills = fills

    def _found_fills(
        self, size: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, _Fill]:
        """Which dims of which arguments go with the watched one: those of its size."""
        watched = self._guard.on
        assert watched.dim is not None
        found: dict[str, _Fill] = {}
        for source, tensor in tensors(args, kwargs):
            equal = [dim for dim, n in enumerate(tensor.shape) if n == size]
            if self._is(source, watched.input):
                found[source] = _Fill(watched.dim % tensor.dim(), self._value(source, tensor))
            elif equal:
                dim = watched.dim if watched.dim in equal else equal[0]
                found[source] = _Fill(dim, self._value(source, tensor))
        return found

    def _is(self, source: str, key: int | str | None) -> bool:
        """Whether a source is the argument of that place or name."""
        if key is None:
            return False
        places = [key] if isinstance(key, int) else []
        places += [self._names.index(key)] if key in self._names else []
        names = [key] if isinstance(key, str) else self._names[key : key + 1]
        return source in {
            *(f"L['args'][{place}]" for place in places),
            *(f"L['kwargs'][{name!r}]" for name in names),
        }

    def _value(self, source: str, tensor: torch.Tensor) -> float:
        if self._is(source, self._pad.mask) or self._is(source, self._pad.weight):
            return 0.0
        whole = not tensor.is_floating_point() and tensor.dtype is not torch.bool
        if self._pad.ignore is not None and whole and not self._is(source, self._guard.on.input):
            return float(self._pad.ignore)
        return self._pad.with_

    def _proved(self, gm: Any, fills: dict[str, _Fill]) -> Outcome:
        rows: dict[int, Rows] = {}
        user: set[int] = set()
        labels: set[int] = set()
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        for number, node in enumerate(placeholders):
            source = torch_api.input_source(node)
            if _SOURCE.match(source):
                user.add(number)
            fill = fills.get(source)
            if fill is not None:
                rows[number] = Rows(fill.dim, zero=fill.value == 0)
                if fill.value == self._pad.ignore:
                    labels.add(number)
        return prove(gm, Inputs(rows, frozenset(user), frozenset(labels), self._pad.ignore))

    def _refuse(self, why: str) -> None:
        span = self._guard.origin("otherwise")
        self._guards.refuse(
            Diagnostic(
                "SG0723",
                f"padding `{self._guard.on}` is not proved to change nothing: {why}",
                None if span is None else Label(span),
                notes=("a padded row must have no part in any other row, sum or random number",),
                help="write `otherwise = recompile`, or name a `mask`, `weight` or `ignore` that "
                "takes padded rows out",
            )
        )

    # --- a call ----------------------------------------------------------------------------------

    def enlarged(
        self, size: int, target: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with rows added."""
        fills = self._fills or self._found_fills(size, args, kwargs)
        found = {
            source: self._one(tensor, fills[source], size, target)
            for source, tensor in tensors(args, kwargs)
            if source in fills
        }
        return (
            tuple(_replaced(f"L['args'][{i}]", value, found) for i, value in enumerate(args)),
            {k: _replaced(f"L['kwargs'][{k!r}]", value, found) for k, value in kwargs.items()},
        )

    def _one(self, tensor: torch.Tensor, fill: _Fill, size: int, target: int) -> torch.Tensor:
        if tensor.shape[fill.dim] != size:
            self._refuse(f"an argument that goes with it has {tensor.shape[fill.dim]} rows")
        before = [0] * (2 * (tensor.dim() - fill.dim) - 1)
        value = bool(fill.value) if tensor.dtype is torch.bool else fill.value
        return F.pad(tensor, [*before, target - size], value=value)

    def cutting(self, size: int, target: int) -> Callable[[Any], Any]:
        """What takes the added rows off the outputs of the call with `target` rows."""

        def cut(result: Any) -> Any:
            outcome = self._outcomes[target, self._module.training]
            return pytree.tree_map_only(
                torch.Tensor, lambda tensor: _cut(tensor, outcome, size, target), result
            )

        return cut


def _replaced(source: str, value: Any, found: dict[str, torch.Tensor]) -> Any:
    """An argument with its tensors replaced, one level into lists and dicts."""
    if source in found:
        return found[source]
    if isinstance(value, dict):
        return {k: found.get(f"{source}[{k!r}]", v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(found.get(f"{source}[{k}]", v) for k, v in enumerate(value))
    return value


def _cut(tensor: torch.Tensor, outcome: Outcome, size: int, target: int) -> torch.Tensor:
    shape = tuple(tensor.shape)
    found = {rows and Rows(rows.dim, rows.outer, rows.inner)
             for known, rows in outcome.outputs if known == shape}  # fmt: skip
    rows = found.pop() if len(found) == 1 else None
    if rows is None:
        if found:
            raise RuntimeError(f"sgplan: two outputs of shape {shape} differ in what was padded")
        return tensor
    if rows.outer == 1:
        return tensor.narrow(rows.dim, 0, size * rows.inner)
    parts = tensor.unflatten(rows.dim, (rows.outer, target, rows.inner))
    kept = parts.narrow(rows.dim + 1, 0, size)
    return kept.reshape(*shape[: rows.dim], math.prod((rows.outer, size, rows.inner)),
                        *shape[rows.dim + 1 :])  # fmt: skip
