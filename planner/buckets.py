"""The one bucket list that hooks and in-graph reductions share.

Knows parameters and two sizes, nothing else: the list must be the same on every rank before any
graph exists. It refuses to look at graphs, ranks or the order in which gradients appear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sgplan.planner.facts import ParameterFact
from sgplan.planner.program import Bucket, Origin, Slot

# Inductor asserts 16-byte alignment of every op output; 64 is a cache line and serves vector loads.
ALIGNMENT = 64

WIRE_ITEMSIZE = {"bf16": 2, "f16": 2}

Indexed = tuple[int, ParameterFact]


@dataclass(slots=True)
class _Open:
    """A bucket that is still being filled, one for each (dtype, device)."""

    cap: int
    members: list[Indexed] = field(default_factory=list[Indexed])
    nbytes: int = 0


def bucket_list(
    root: str,
    parameters: Sequence[ParameterFact],
    *,
    bucket: int,
    first_bucket: int,
    wire: str | None = None,
    number: int = 0,
    origin: Origin | None = None,
) -> tuple[Bucket, ...]:
    """The buckets of one root, in launch order.

    Args:
        root: name of the root.
        parameters: trainable, in registration order.
        bucket, first_bucket: bytes at which a bucket closes; the first one of each dtype and
            device closes at `first_bucket`, so that communication begins early.
        wire: short name of the dtype on the wire, None for the gradients' own.
        number: of the first bucket's name, so that names are unique over all roots.
        origin: the clause that asked for the sizes.
    """
    groups = _group(list(enumerate(parameters)), bucket, first_bucket)
    return tuple(
        _layout(f"b{number + place}", root, members, wire, origin)
        for place, members in enumerate(groups)
    )


def _group(parameters: list[Indexed], bucket: int, first_bucket: int) -> list[list[Indexed]]:
    """Gradients tend to become final in reverse registration order, so buckets fill that way."""
    open_: dict[tuple[str, str], _Open] = {}
    closed: list[list[Indexed]] = []
    for index, parameter in reversed(parameters):
        key = (parameter.dtype, parameter.device)
        current = open_.setdefault(key, _Open(first_bucket))
        current.members.append((index, parameter))
        current.nbytes += parameter.nbytes
        if current.nbytes >= current.cap:
            closed.append(current.members)
            open_[key] = _Open(bucket)
    closed += [rest.members for rest in open_.values() if rest.members]
    # A bucket can start when its last member is ready, so that member decides its turn.
    return sorted(closed, key=lambda members: -members[-1][0])


def _layout(
    name: str, root: str, members: list[Indexed], wire: str | None, origin: Origin | None
) -> Bucket:
    first = members[0][1]
    step = max(1, ALIGNMENT // first.itemsize)
    offset = 0
    slots: list[Slot] = []
    for index, parameter in members:
        strides = parameter.strides if parameter.dense else contiguous(parameter.shape)
        slots.append(Slot(parameter.name, index, offset, parameter.shape, strides))
        offset += -(-parameter.numel // step) * step
    return Bucket(
        name=name,
        root=root,
        dtype=first.dtype,
        wire=_wire_dtype(first, wire),
        numel=offset,
        nbytes=sum(parameter.nbytes for _, parameter in members),
        slots=tuple(slots),
        origin=origin,
    )


def _wire_dtype(parameter: ParameterFact, wire: str | None) -> str:
    """A wire dtype that is no smaller than the gradient's own would only lose accuracy."""
    if wire is None or WIRE_ITEMSIZE[wire] >= parameter.itemsize:
        return parameter.dtype
    return wire


def contiguous(shape: Iterable[int]) -> tuple[int, ...]:
    """Row-major strides of `shape`, as torch gives them (a size of 0 counts as 1)."""
    strides: list[int] = []
    step = 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))
