"""The moments of two runs side by side: one row for each quantity, and the first difference.

Knows tensors and tolerances; who caused a difference is `trace.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sgplan.interpreter import moments
from sgplan.interpreter.moments import Moment, Tensors
from sgplan.proof.findings import Comparison, Difference, Place, Row
from sgplan.proof.tolerance import EPS32, Tolerance

# In the order in which they come within a moment; the first one that differs is the cause.
QUANTITIES = (
    "path",
    "random state before",
    "state",
    "inputs",
    "outputs",
    "buffers",
    "random state",
    "loss",
    "gradient topology",
    "gradients",
    "gradients at the update",
    "optimizer settings",
    "parameters",
    "optimizer state",
)
_FORWARD = frozenset({"inputs", "outputs", "buffers", "loss"})
_GRADIENT = frozenset({"gradients", "gradients at the update", "state"})
# Made equal by `verify` itself before the first step.
_GIVEN = frozenset({"state", "random state before"})
_EXACT = ("random state before", "random state", "gradient topology", "optimizer settings")
# Rounding of sums that are zero but for it: a bias in front of a normalisation has such gradients.
_ROUNDING = 4 * EPS32


@dataclass(frozen=True, slots=True)
class _Value:
    """One pair of values; it is judged by `failed`, the numbers are for eyes."""

    quantity: str
    tensor: str
    bitwise: bool
    failed: bool
    relative: float = 0.0
    allowed: float = 0.0
    text: str = ""


def compare(reference: Path, planned: Path, allowed: Tolerance) -> Comparison:
    """Compare the moments in two run folders."""
    rows = {quantity: Row(quantity) for quantity in QUANTITIES}
    found = Comparison()
    steps: list[int] = []
    ranks = sorted({*moments.ranks_in(reference), *moments.ranks_in(planned)})
    failed: list[tuple[int, int, Difference]] = []
    for rank in ranks:
        last = -1
        for number, ours, theirs in _pairs(reference, planned, rank):
            moment = theirs or ours
            assert moment is not None
            last = max(last, moment.step)
            for value in _values(theirs, ours, allowed):
                name = " ".join(filter(None, (moment.kind, moment.name)))
                place = Place(rank, moment.step + 1, name, value.tensor)
                _count(rows[value.quantity], value, place)
                if value.failed:
                    one = Difference(
                        value.quantity, place, value.relative, value.allowed, value.text
                    )
                    failed.append((number, QUANTITIES.index(value.quantity), one))
        steps.append(last + 1)
    found.steps = min(steps, default=0)
    found.rows = [row for row in rows.values() if row.compared]
    found.first = min(failed, key=lambda each: each[:2])[2] if failed else None
    return found


def computed_in(run: Path) -> frozenset[str]:
    """The number formats of a run's parameters and of autocast."""
    found: set[str] = set()
    for rank in moments.ranks_in(run):
        folder = moments.folder_of(run, rank)
        for number in range(moments.count(folder)):
            moment = moments.read(folder, number)
            if moment is not None:
                found.update(moment.facts.get("compute", ()))
    return frozenset(found)


def _pairs(
    reference: Path, planned: Path, rank: int
) -> Iterator[tuple[int, Moment | None, Moment | None]]:
    """Number, and the moments of that number of planned and reference run."""
    ours, theirs = moments.folder_of(planned, rank), moments.folder_of(reference, rank)
    for number in range(max(moments.count(ours), moments.count(theirs))):
        pair = moments.read(ours, number), moments.read(theirs, number)
        if pair != (None, None):
            yield number, *pair


def _count(row: Row, value: _Value, place: Place) -> None:
    row.compared += 1
    row.bitwise += value.bitwise
    row.failed += value.failed
    worse = value.relative > row.largest or (value.failed and row.failed == 1)
    if row.at is None or worse:
        row.largest, row.allowed, row.at = value.relative, value.allowed, place


def _values(theirs: Moment | None, ours: Moment | None, allowed: Tolerance) -> Iterator[_Value]:
    if theirs is None or ours is None:
        missing = "plain" if theirs is None else "planned"
        yield _unlike("path", "", f"the {missing} run has no such moment")
        return
    if (theirs.kind, theirs.name) != (ours.kind, ours.name):
        text = f"the plain run is in {theirs.kind} {theirs.name} there"
        yield _unlike("path", "", text)
        return
    given = _GIVEN if theirs.step == 0 else frozenset[str]()
    for quantity in _EXACT:
        if quantity not in given and (quantity in theirs.facts or quantity in ours.facts):
            yield _exact(quantity, theirs.facts.get(quantity), ours.facts.get(quantity))
    for quantity, tensors in theirs.values.items():
        if quantity == "before" or quantity in given:
            continue
        others = ours.values.get(quantity, {})
        if quantity in ("parameters", "optimizer state"):
            yield from _updated(quantity, theirs, tensors, others, allowed.update)
        else:
            yield from _tensors(quantity, tensors, others, allowed)


def _exact(quantity: str, theirs: Any, ours: Any) -> _Value:
    if theirs == ours:
        return _Value(quantity, "", bitwise=True, failed=False)
    return _unlike(quantity, *_first_difference(theirs, ours))


def _unlike(quantity: str, tensor: str, text: str) -> _Value:
    """What differs in another way than by a number."""
    return _Value(quantity, tensor, bitwise=False, failed=True, relative=math.inf, text=text)


def _first_difference(theirs: Any, ours: Any) -> tuple[str, str]:
    if isinstance(theirs, list) and isinstance(ours, list):
        for each in reversed(theirs):
            if isinstance(each, str) and each not in ours:
                return each, "no gradient comes to it in the planned run"
        for each in ours:
            if isinstance(each, str) and each not in theirs:
                return each, "a gradient comes to it in the planned run alone"
        for one, other in zip(theirs, ours, strict=False):
            if one != other:
                return _first_difference(one, other)
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for name in {**theirs, **ours}:
            if theirs.get(name) != ours.get(name):
                return str(name), f"{theirs.get(name)}, in the planned run {ours.get(name)}"
    return "", f"{theirs}, in the planned run {ours}"


def _tensors(quantity: str, theirs: Tensors, ours: Tensors, allowed: Tolerance) -> Iterator[_Value]:
    limit = allowed.forward if quantity in _FORWARD else 0.0
    limit = max(limit, allowed.gradient) if quantity in _GRADIENT else limit
    floor = 0.0
    if quantity in ("gradients", "gradients at the update") and limit:
        floor = _ROUNDING * max(
            (_largest(each) for each in theirs.values() if each is not None), default=0.0
        )
    names = [*{**theirs, **ours}]
    # Gradients come to the parameters that were registered last first, as data parallel has it.
    for name in reversed(names) if quantity in _GRADIENT else names:
        one, other = theirs.get(name), ours.get(name)
        scale = 0.0 if one is None else _largest(one)
        yield _pair(quantity, name, one, other, scale, limit * scale + floor)


def _updated(
    quantity: str, moment: Moment, theirs: Tensors, ours: Tensors, limit: float
) -> Iterator[_Value]:
    """Parameters relative to how far they moved, the optimizer's state to its largest value."""
    before = moment.values.get("before", {})
    for name in {**theirs, **ours}:
        one, other, old = theirs.get(name), ours.get(name), before.get(name)
        scale = largest = 0.0 if one is None else _largest(one)
        if quantity == "parameters" and one is not None and old is not None:
            scale = _largest(one.double() - old.double()) or largest
        floor = _ROUNDING * largest if limit else 0.0
        yield _pair(quantity, name, one, other, scale, limit * scale + floor)


def _pair(
    quantity: str,
    name: str,
    theirs: torch.Tensor | None,
    ours: torch.Tensor | None,
    scale: float,
    allowed: float,
) -> _Value:
    """One tensor of both runs.

    Args:
        scale: what the difference is relative to.
        allowed: the absolute difference that is.
    """
    if theirs is None or ours is None:
        if theirs is ours:
            return _Value(quantity, name, bitwise=True, failed=False)
        missing = "plain" if theirs is None else "planned"
        return _unlike(quantity, name, f"the {missing} run has none")
    if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
        return _unlike(quantity, name, f"{_shown(theirs)}, in the planned run {_shown(ours)}")
    unit = scale or 1.0
    if same_bits(theirs, ours):
        return _Value(quantity, name, bitwise=True, failed=False, allowed=allowed / unit)
    distance = _distance(theirs, ours)
    # Another integer is wrong however near it is.
    rounds = theirs.dtype.is_floating_point or theirs.dtype.is_complex
    failed = not rounds or not distance <= allowed
    return _Value(quantity, name, False, failed, distance / unit, allowed / unit if rounds else 0.0)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are equal in every bit; all NaNs are alike."""
    if torch.equal(_bytes(one), _bytes(other)):
        return True
    left, right = _parts(one), _parts(other)
    if not left.dtype.is_floating_point:
        return False
    wide = left.double().isnan()
    if not wide.any() or not torch.equal(wide, right.double().isnan()):
        return False
    size = left.element_size()
    kept = (~wide).reshape(-1)
    return torch.equal(_bytes(left).reshape(-1, size)[kept], _bytes(right).reshape(-1, size)[kept])


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """Real numbers: of a complex tensor both parts."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.dtype.is_complex else tensor


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's memory, for it is there for every dtype, when arithmetic is not."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Double the precision of anything: bool, float8 and unsigned integers have no arithmetic."""
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest absolute difference; infinite where only one is NaN or infinite."""
    left, right = _wide(one), _wide(other)
    apart = ~((left == right) | (left.isnan() & right.isnan()))
    left, right = left[apart], right[apart]
    if not left.numel():
        return 0.0
    distance = (left - right).abs()
    return math.inf if bool(distance.isnan().any()) else float(distance.max())


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite absolute value."""
    wide = _wide(tensor).abs()
    finite = wide[wide.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
