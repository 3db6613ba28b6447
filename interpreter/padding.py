"""Inputs enlarged to a size that a guard allows, where that is proved to change nothing.

The proof (`planner/capture/rows.py`) is about the graph of this very call: the call is traced, with
the number of rows as a symbol, and Dynamo's guards decide whether the trace of an earlier call
holds for it. How outputs are cut back is in `cutting.py`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Guard, Interval, Pad
from sgplan.interpreter.arguments import Argument, NotThere
from sgplan.interpreter.cutting import Cut
from sgplan.interpreter.guard_values import tensors
from sgplan.interpreter.guards import Guards
from sgplan.planner import torch_api
from sgplan.planner.capture.rows import NotProved, Outcome, Range, Rows, prove

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
# What looks at the graph of a call -> a call that is traced and never runs, which returns what was
# found when its graph was traced.
Tracer = Callable[[Callable[[Any], Any]], Callable[..., Any]]
# Torch compiles the sizes 0 and 1 for themselves: no graph holds for them and for others.
LEAST = 2


@dataclass(frozen=True, slots=True)
class _Fill:
    """A dim of an argument, and what its added rows hold."""

    dim: int
    value: float


class Padding:
    """What a guard with `otherwise = pad(…)` does for one module."""

    def __init__(self, guards: Guards, guard: Guard, module: nn.Module, tracer: Tracer) -> None:
        assert isinstance(guard.otherwise, Pad)
        self._guards = guards
        self._guard = guard
        self._pad: Pad = guard.otherwise
        self._module = module
        self._sources: dict[int | str, tuple[str, ...]] = {}
        self._tracer = tracer
        self._traces: dict[Any, Callable[..., Any]] = {}
        # Arguments that had another size in a call of an allowed size, and hence do not go with it.
        self._apart: set[str] = set()

    def target(self, size: Any, allowed: list[Any]) -> int | None:
        """The smallest allowed size that holds `size`; None when it is larger than all."""
        if type(size) is not int:
            return None
        allow = self._guard.allow
        if isinstance(allow, Interval):
            return allow.low if allow.low is not None and size < allow.low else None
        return min((known for known in allowed if known >= size), default=None)

    def check(self, size: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prove a call of an allowed size before the first that is padded; ends the rank if not."""
        if type(size) is not int or size < LEAST:
            return
        fills = self._fills(size, args, kwargs)
        self._apart.update(source for source, _ in tensors(args, kwargs) if source not in fills)
        self._outcome(fills, args, kwargs)

    def enlarge(
        self, size: int, target: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Arguments, Cut]:
        """The arguments with rows added, and what takes them off; ends the rank without a proof."""
        fills = self._fills(size, args, kwargs)
        args, kwargs = _mapped(
            fills, lambda tensor, fill: _enlarged(tensor, fill, target - size), args, kwargs
        )
        return (args, kwargs), Cut(self._outcome(fills, args, kwargs), size, target)

    # --- what goes with the watched size ---------------------------------------------------------

    def _fills(self, size: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, _Fill]:
        """Which dims of which arguments have the watched size.

        An argument that has it by chance is enlarged as well; the proof holds or does not.
        """
        watched = self._guard.on
        assert watched.dim is not None
        for name in filter(None, (self._pad.mask, self._pad.weight)):
            self._find(name)
        found: dict[str, _Fill] = {}
        for source, tensor in tensors(args, kwargs):
            equal = [dim for dim, n in enumerate(tensor.shape) if n == size]
            if self._is(source, watched.input):
                dim = watched.dim % tensor.dim()
            elif equal and source not in self._apart:
                dim = watched.dim if watched.dim in equal else equal[0]
            else:
                continue
            found[source] = _Fill(dim, self._value(source, tensor))
        return found

    def _find(self, name: str) -> None:
        """A `mask` or `weight` that is no argument is an error."""
        try:
            Argument.of(name, self._module)
        except NotThere:
            parameters = inspect.signature(self._module.forward).parameters
            known = ", ".join(f"`{each}`" for each in parameters)
            self._guards.not_there(
                self._guard, f"`pad` names `{name}`, no argument of `forward`; it has {known}"
            )

    def _is(self, source: str, key: int | str | None) -> bool:
        """Whether a source is the argument of that place or name; `*` is none of its own."""
        if key in (None, "*"):
            return False
        if key not in self._sources:
            self._sources[key] = Argument.of(key, self._module).sources
        return source in self._sources[key]

    def _value(self, source: str, tensor: torch.Tensor) -> float:
        """What fills an argument, as its type holds it."""
        whole = not tensor.is_floating_point() and tensor.dtype is not torch.bool
        watched = self._is(source, self._guard.on.input)
        wanted: float = self._pad.with_
        if self._is(source, self._pad.mask) or self._is(source, self._pad.weight):
            wanted = 0.0
        elif self._pad.ignore is not None and whole and not watched:
            wanted = self._pad.ignore
        try:
            value = float(torch.tensor(wanted, dtype=tensor.dtype).item())
        except (RuntimeError, OverflowError, TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            self.refuse(f"`{tensor.dtype}` does not hold {wanted:g}")
        return value

    # --- the proof -------------------------------------------------------------------------------

    def _outcome(
        self, fills: dict[str, _Fill], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        """The proof for the graph of this call; ends the rank where there is none."""
        # Which other arguments are not finite is no matter of Dynamo's guards.
        infinite = frozenset(
            source
            for source, tensor in tensors(args, kwargs)
            if source not in fills and not torch_api.is_finite(tensor)
        )
        key = frozenset(fills.items()), infinite
        if key not in self._traces:
            self._traces[key] = self._tracer(lambda gm: _proved(gm, fills))
        args, kwargs = _mapped(
            fills, lambda tensor, fill: torch_api.open_size(tensor, fill.dim), args, kwargs
        )
        try:
            found = self._traces[key](*args, **kwargs)
        except torch_api.dynamo_error() as error:
            found = NotProved(f"there is no whole graph: {str(error).strip().splitlines()[0]}")
        if isinstance(found, Outcome):
            return found
        self.refuse(str(found or "the call has no graph"))
        raise AssertionError("a rank that is stopped does not go on")

    def refuse(self, why: str) -> None:
        """End the rank: this padding is not proved."""
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


def _proved(gm: Any, fills: dict[str, _Fill]) -> Outcome | NotProved:
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    sources = [torch_api.input_source(node) for node in placeholders]
    rows = {
        number: Rows(fills[source].dim, added=Range(fills[source].value, fills[source].value))
        for number, source in enumerate(sources)
        if source in fills and isinstance(placeholders[number].meta["example_value"], torch.Tensor)
    }
    infinite = [
        number
        for number, node in enumerate(placeholders)
        if number not in rows
        and isinstance(value := torch_api.input_value(node), torch.Tensor)
        and not torch_api.is_finite(value)
    ]
    try:
        return prove(gm, rows, infinite)
    except NotProved as error:
        return error


def _enlarged(tensor: torch.Tensor, fill: _Fill, by: int) -> torch.Tensor:
    """A tensor with rows added, laid out in memory as it was: a model may ask for its strides."""
    size = tensor.shape[fill.dim]
    value = bool(fill.value) if tensor.dtype is torch.bool else fill.value
    strides = _strides(tensor, fill.dim, size + by)
    if strides is None:
        before = [0] * (2 * (tensor.dim() - fill.dim) - 1)
        return F.pad(tensor, [*before, by], value=value)
    shape = [size + by if dim == fill.dim else n for dim, n in enumerate(tensor.shape)]
    made = tensor.new_empty_strided(shape, strides)
    made.narrow(fill.dim, 0, size).copy_(tensor)
    made.narrow(fill.dim, size, by).fill_(value)
    return made


def _strides(tensor: torch.Tensor, dim: int, size: int) -> list[int] | None:
    """Strides of a tensor that has another size in one dim; None where elements share memory, or
    lie in gaps of others in a way that a longer dim has no place for."""
    own, others = tensor.stride(dim), [d for d, n in enumerate(tensor.shape) if d != dim and n > 1]
    if own == 0 or not tensor.numel() or any(tensor.stride(d) == 0 for d in others):
        return None
    inside = sum((tensor.shape[d] - 1) * tensor.stride(d) for d in others)
    if inside < own:
        return list(tensor.stride())
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), d == dim), reverse=True)
    if not tensor.permute(order).is_contiguous():
        return None
    outer = order[: order.index(dim)]
    found = list(tensor.stride())
    for d in outer:
        found[d] = found[d] // tensor.shape[dim] * size
    return found


def _mapped(
    fills: dict[str, _Fill],
    change: Callable[[torch.Tensor, _Fill], torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Arguments:
    """Arguments with those tensors changed that are filled, one level into lists and dicts."""
    # A tensor that is passed twice stays one.
    made: dict[tuple[int, _Fill], torch.Tensor] = {}

    def one(source: str, value: Any) -> Any:
        fill = fills.get(source)
        if fill is not None:
            key = (id(value), fill)
            if key not in made:
                made[key] = change(value, fill)
            return made[key]
        if type(value) is dict:
            return {k: one(f"{source}[{k!r}]", v) for k, v in value.items()}
        if type(value) in (list, tuple):
            return type(value)(one(f"{source}[{k}]", v) for k, v in enumerate(value))
        return value

    return (
        tuple(one(f"L['args'][{i}]", value) for i, value in enumerate(args)),
        {k: one(f"L['kwargs'][{k!r}]", value) for k, value in kwargs.items()},
    )
