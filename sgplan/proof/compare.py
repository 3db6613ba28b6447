"""The moments of two runs side by side: one row for each quantity, and the first difference.

Knows tensors and tolerances; who caused a difference is `trace.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
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
# Rounding of what is zero but for it: a bias in front of a normalisation has such gradients.
_ROUNDING_EPS = 4
_ROUNDING = _ROUNDING_EPS * EPS32
# What ends a step, if a run has it; a call alone is no step.
_ENDS = ("update", "backward")


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
    nan: bool = False


def compare(
    reference: Path,
    planned: Path,
    allowed: Sequence[Tolerance],
    world: int,
    exempt: Collection[Start] = (),
) -> Comparison:
    """Compare the moments in two run folders.

    Args:
        allowed: in each step; the last one also in those after it.
        world: ranks; one that recorded nothing in either run has proved nothing.
        exempt: values at the start that are other ones in every run of the script.
    """
    rows = {quantity: Row(quantity) for quantity in QUANTITIES}
    found = Comparison()
    steps: list[int] = []
    ranks = sorted({*range(world), *moments.ranks_in(reference), *moments.ranks_in(planned)})
    failed: list[tuple[int, int, Difference]] = []
    for rank in ranks:
        ended = dict.fromkeys(_ENDS, 0)
        skipped: set[int] = set()
        outputs = 0.0
        for number, ours, theirs in _pairs(reference, planned, rank):
            moment = theirs or ours
            assert moment is not None
            if moment.kind in ended:
                ended[moment.kind] = moment.step + 1
            if ours is not None and "skipped" in ours.facts:
                skipped.add(moment.step)
            found.notes += [note for note in moment.notes if note not in found.notes]
            limit = allowed[min(moment.step, len(allowed) - 1)]
            for value in _values(theirs, ours, limit, outputs):
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
            if moment.kind == "call":
                outputs = max(outputs, _largest_of(moment.values.get("outputs", {})))
            elif moment.kind == "update":
                outputs = 0.0
        came = next((count for count in ended.values() if count), 0)
        steps.append(max(came - len(skipped), 0))
        found.skipped = max(found.skipped, len(skipped))
        if not came:
            found.silent.append(rank)
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
    row.nans += value.nan
    if value.nan and row.first_nan is None:
        row.first_nan = place
    first_failed = value.failed and row.failed == 1
    worse = value.relative > row.largest and (value.failed or not row.failed)
    if row.at is None or first_failed or worse:
        row.largest, row.allowed, row.at = value.relative, value.allowed, place


def _values(
    theirs: Moment | None, ours: Moment | None, allowed: Tolerance, outputs: float
) -> Iterator[_Value]:
    """Every pair of values of a moment.

    Args:
        outputs: the largest output of the calls before it, which its loss is made of.
    """
    if theirs is None or ours is None:
        missing = "plain" if theirs is None else "planned"
        yield _unlike("path", "", f"the {missing} run has no such moment")
        return
    if (theirs.kind, theirs.name) != (ours.kind, ours.name):
        text = f"the plain run is in {theirs.kind} {theirs.name} there"
        yield _unlike("path", "", text)
        return
    if "skipped" in ours.facts:
        yield _skipped(ours.facts["skipped"])
        return
    for quantity in _EXACT:
        if quantity in theirs.facts or quantity in ours.facts:
            yield _exact(quantity, theirs.facts.get(quantity), ours.facts.get(quantity))
    for quantity in {**theirs.values, **ours.values}:
        overflow = quantity == "gradients" and "overflow" in ours.facts
        if quantity == "before" or overflow:
            continue
        if quantity in ("parameters", "optimizer state"):
            yield from _updated(quantity, theirs, ours, allowed)
        else:
            pair = theirs.values.get(quantity, {}), ours.values.get(quantity, {})
            yield from _tensors(quantity, *pair, allowed, outputs)


def _skipped(moved: list[str]) -> _Value:
    """An update that the plan's loss scale has the planned run skip: then nothing moves."""
    text = "gradients overflowed under the loss scale, and it moved all the same"
    if moved:
        return _unlike("skipped update", moved[0], text)
    return _Value("skipped update", "", bitwise=True, failed=False)


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


def _tensors(
    quantity: str, theirs: Tensors, ours: Tensors, allowed: Tolerance, outputs: float
) -> Iterator[_Value]:
    names = [*{**theirs, **ours}]
    every = _largest_of(theirs)
    near = _largest_in_modules(theirs)
    # Gradients come to the parameters that were registered last first, as data parallel has it.
    for name in reversed(names) if quantity in _GRADIENT else names:
        one, other = theirs.get(name), ours.get(name)
        limit = _limit(quantity, allowed, _eps(one, other))
        floor = base = 0.0
        if limit and quantity in ("gradients", "gradients at the update"):
            base, floor = every, _ROUNDING * every + allowed.low * near.get(_module(name), 0.0)
        elif limit and quantity in ("buffers", "state"):
            base = near.get(_module(name), 0.0)
            floor = (_ROUNDING + allowed.low) * base
        elif limit and quantity == "loss":
            base, floor = outputs, (_ROUNDING + allowed.low) * outputs
        scale = 0.0 if one is None else _largest(one)
        yield _pair(quantity, name, one, other, scale or base, limit * scale + floor, allowed)


def _limit(quantity: str, allowed: Tolerance, eps: float) -> float:
    """The difference relative to its own largest value that a tensor may have."""
    forward = max(allowed.forward, allowed.forward_eps * eps)
    gradient = max(allowed.gradient, allowed.gradient_eps * eps)
    if quantity == "state":
        return max(forward, gradient)
    return forward if quantity in _FORWARD else gradient


def _updated(
    quantity: str, their_moment: Moment, our_moment: Moment, allowed: Tolerance
) -> Iterator[_Value]:
    """Parameters relative to how far they moved, the optimizer's state to its largest value.

    Adding a step to a parameter rounds it in its own format, however small the step is; where
    parameters are stored in another format, the gradient that the step is made of is rounded too.
    """
    theirs, ours = (each.values.get(quantity, {}) for each in (their_moment, our_moment))
    before = their_moment.values.get("before", {})
    update = allowed.update
    if allowed.stored:
        gradients = our_moment.values.get("gradients at the update", {})
        update = max(update, _ROUNDING_EPS * _eps(*gradients.values()))
    for name in {**theirs, **ours}:
        one, other, old = theirs.get(name), ours.get(name), before.get(name)
        rounding = _ROUNDING_EPS * _eps(one, other) if update else 0.0
        scale = 0.0 if one is None else _largest(one)
        limit: float | torch.Tensor = max(update, rounding) * scale
        if quantity == "parameters" and one is not None and old is not None:
            new, was = _wide(one), _wide(old)
            scale = _largest(new - was) or scale
            values = torch.maximum(new.abs(), was.abs()).nan_to_num(0.0, 0.0, 0.0)
            limit = update * scale + rounding * values
        yield _pair(quantity, name, one, other, scale, limit, allowed)


def _pair(
    quantity: str,
    name: str,
    theirs: torch.Tensor | None,
    ours: torch.Tensor | None,
    scale: float,
    limit: float | torch.Tensor,
    allowed: Tolerance,
) -> _Value:
    """One tensor of both runs.

    Args:
        scale: what the difference is relative to.
        limit: the absolute difference that is allowed, of all elements or of each.
    """
    if theirs is None or ours is None:
        if theirs is ours:
            return _Value(quantity, name, bitwise=True, failed=False)
        missing = "plain" if theirs is None else "planned"
        return _unlike(quantity, name, f"the {missing} run has none")
    rounds = _rounds(theirs) and _rounds(ours)
    stored = allowed.stored and rounds and quantity != "inputs"
    if theirs.shape != ours.shape or (theirs.dtype != ours.dtype and not stored):
        return _unlike(quantity, name, f"{_shown(theirs)}, in the planned run {_shown(ours)}")
    unit = scale or 1.0
    worst, most = _worst(theirs, ours, limit)
    bitwise = theirs.dtype == ours.dtype and same_bits(theirs, ours)
    # Another integer is wrong however near it is.
    failed = not bitwise and (not rounds or not worst <= most)
    nan = rounds and bool((_wide(theirs).isnan() & _wide(ours).isnan()).any())
    return _Value(
        quantity, name, bitwise, failed, worst / unit, most / unit if rounds else 0.0, nan=nan
    )


def _rounds(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _eps(*tensors: torch.Tensor | None) -> float:
    """Of the coarsest format."""
    given = (tensor for tensor in tensors if tensor is not None and _rounds(tensor))
    return max((torch.finfo(tensor.dtype).eps for tensor in given), default=0.0)


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


def _worst(
    one: torch.Tensor, other: torch.Tensor, limit: float | torch.Tensor
) -> tuple[float, float]:
    """Difference and limit of the element that is farthest beyond what it may be, or nearest to it.

    The difference is infinite where only one is NaN or infinite.
    """
    left, right = _wide(one), _wide(other)
    most = torch.as_tensor(limit, dtype=torch.float64).expand(left.shape)
    if not left.numel():
        return 0.0, 0.0
    equal = (left == right) | (left.isnan() & right.isnan())
    distance = (left - right).abs().nan_to_num(math.inf, math.inf).masked_fill(equal, 0.0)
    at = int((distance - most).argmax())
    return float(distance.reshape(-1)[at]), float(most.reshape(-1)[at])


def _largest_of(tensors: Tensors) -> float:
    """The largest finite absolute value of all that round."""
    given = (tensor for tensor in tensors.values() if tensor is not None and _rounds(tensor))
    return max(map(_largest, given), default=0.0)


def _largest_in_modules(tensors: Tensors) -> dict[str, float]:
    """The same for each module that holds some of them itself."""
    found: dict[str, float] = {}
    for name, tensor in tensors.items():
        if tensor is not None and _rounds(tensor):
            found[_module(name)] = max(found.get(_module(name), 0.0), _largest(tensor))
    return found


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite absolute value."""
    wide = _wide(tensor).abs()
    finite = wide[wide.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
