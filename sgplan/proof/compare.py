"""The moments of two runs side by side: one row for each quantity, and the first difference.

Knows tensors and tolerances; who caused a difference is `trace.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sgplan.interpreter import moments
from sgplan.interpreter.moments import Moment, Tensors
from sgplan.proof.findings import Comparison, Difference, Place, Row, Start
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
    "skipped update",
    "parameters",
    "optimizer state",
)
_FORWARD = frozenset({"inputs", "outputs", "buffers", "loss"})
_GRADIENT = frozenset({"gradients", "gradients at the update", "state"})
# What a script begins with; from then on the planned run takes it over.
_START = frozenset({"state", "random state before"})
_EXACT = ("random state before", "random state", "gradient topology", "optimizer settings")
# Rounding of sums that are zero but for it: a bias in front of a normalisation has such gradients.
_ROUNDING = 4 * EPS32


@dataclass(frozen=True, slots=True)
class _Value:
    """One pair of values; the difference is relative."""

    quantity: str
    tensor: str
    bitwise: bool
    relative: float
    allowed: float
    text: str = ""

    @property
    def failed(self) -> bool:
        return not self.bitwise and not self.relative <= self.allowed


def compare(
    reference: Path, planned: Path, allowed: Tolerance, exempt: Collection[Start] = ()
) -> Comparison:
    """Compare the moments in two run folders.

    Args:
        exempt: values at the start that are other ones in every run of the script.
    """
    rows = {quantity: Row(quantity) for quantity in QUANTITIES}
    found = Comparison()
    steps: list[int] = []
    ranks = sorted({*moments.ranks_in(reference), *moments.ranks_in(planned)})
    failed: list[tuple[int, int, Difference]] = []
    for rank in ranks:
        last = -1
        skipped: set[int] = set()
        for number, ours, theirs in _pairs(reference, planned, rank):
            moment = theirs or ours
            assert moment is not None
            last = max(last, moment.step)
            if ours is not None and "skipped" in ours.facts:
                skipped.add(moment.step)
            found.notes += [n for n in moment.notes if n not in found.notes]
            for value in _values(theirs, ours, allowed):
                start = moment.step == 0 and value.quantity in _START
                if start and (rank, value.quantity, value.tensor) in exempt:
                    continue
                if start and value.failed:
                    found.start.append((rank, value.quantity, value.tensor))
                name = " ".join(filter(None, (moment.kind, moment.name)))
                place = Place(rank, moment.step + 1, name, value.tensor)
                _count(rows[value.quantity], value, place)
                if value.failed:
                    one = Difference(
                        value.quantity, place, value.relative, value.allowed, value.text
                    )
                    failed.append((number, QUANTITIES.index(value.quantity), one))
        steps.append(last + 1 - len(skipped))
        found.skipped = max(found.skipped, len(skipped))
    found.steps = min(steps, default=0)
    found.rows = [row for row in rows.values() if row.compared]
    found.first = min(failed, key=lambda each: each[:2])[2] if failed else None
    return found


def computed_in(run: Path) -> frozenset[str]:
    """The number formats that a run computed in."""
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
        yield _Value("path", "", False, math.inf, 0.0, f"the {missing} run has no such moment")
        return
    if (theirs.kind, theirs.name) != (ours.kind, ours.name):
        text = f"the plain run is in {theirs.kind} {theirs.name} there"
        yield _Value("path", "", False, math.inf, 0.0, text)
        return
    if "skipped" in ours.facts:
        yield _skipped(ours.facts["skipped"])
        return
    for quantity in _EXACT:
        if quantity in theirs.facts or quantity in ours.facts:
            yield _exact(quantity, theirs.facts.get(quantity), ours.facts.get(quantity))
    for quantity, tensors in theirs.values.items():
        overflow = quantity == "gradients" and "overflow" in ours.facts
        if quantity == "before" or overflow:
            continue
        others = ours.values.get(quantity, {})
        if quantity in ("parameters", "optimizer state"):
            yield from _updated(quantity, theirs, tensors, others, allowed.update)
        else:
            yield from _tensors(quantity, tensors, others, allowed)


def _skipped(moved: list[str]) -> _Value:
    """An update that the plan's loss scale has the planned run skip: then nothing moves."""
    text = "gradients overflowed under the loss scale, and it moved all the same"
    if moved:
        return _Value("skipped update", moved[0], False, math.inf, 0.0, text)
    return _Value("skipped update", "", True, 0.0, 0.0)


def _exact(quantity: str, theirs: Any, ours: Any) -> _Value:
    if theirs == ours:
        return _Value(quantity, "", True, 0.0, 0.0)
    tensor, text = _first_difference(theirs, ours)
    return _Value(quantity, tensor, False, math.inf, 0.0, text)


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
    relative = allowed / scale if scale else (math.inf if allowed else 0.0)
    if theirs is None or ours is None:
        missing = "plain" if theirs is None else "planned"
        text = f"the {missing} run has none"
        return _Value(
            quantity, name, theirs is ours, 0.0 if theirs is ours else math.inf, 0.0, text
        )
    if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
        text = f"{_shown(theirs)}, in the planned run {_shown(ours)}"
        return _Value(quantity, name, False, math.inf, 0.0, text)
    if same_bits(theirs, ours):
        return _Value(quantity, name, True, 0.0, relative)
    if not theirs.dtype.is_floating_point and not theirs.dtype.is_complex:
        return _Value(quantity, name, False, _distance(theirs, ours) / (scale or 1.0), 0.0)
    distance = _distance(theirs, ours)
    if distance == 0.0:  # -0.0 and 0.0
        return _Value(quantity, name, False, 0.0, relative)
    return _Value(quantity, name, False, distance / scale if scale else math.inf, relative)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are equal in every bit, NaNs included."""
    if torch.equal(one, other):
        zero = (one == 0).any()
        return not zero or bool(torch.equal(torch.signbit(one), torch.signbit(other)))
    both = one.isnan() & other.isnan()
    return bool(both.any() and torch.equal(one[~both], other[~both]) and _nans(one, other))


def _nans(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(one.isnan(), other.isnan()))


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest absolute difference; infinite where only one is NaN or infinite."""
    wide = torch.complex128 if one.dtype.is_complex else torch.float64
    left, right = one.to(wide), other.to(wide)
    left, right = left[~(one == other)], right[~(one == other)]
    together = left.isnan() & right.isnan()
    left, right = left[~together], right[~together]
    if not left.numel():
        return 0.0
    distance = (left - right).abs()
    return math.inf if bool(distance.isnan().any()) else float(distance.max())


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite absolute value."""
    if not tensor.numel():
        return 0.0
    wide = tensor.abs().to(torch.float64)
    finite = wide[wide.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
