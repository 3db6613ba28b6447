"""The memory of one bucket: a flat buffer, a view for every gradient, and when it is free again.

After delivery parameters' `.grad`s are views of the buffer, so it belongs to the script until those
are gone; then the same memory serves the next backward, else a new buffer is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import or_

import torch

from sgplan.planner import torch_api
from sgplan.planner.program import Bucket


class BucketBuffer:
    """Flat memory of one bucket.

    Attributes:
        bucket: its layout.
        flat: the buffer, `bucket.numel` elements; the padding is zero and stays zero.
        views: one for each slot, in slot order, in the parameter's strides.
        pointers: of the views' memory.
        missing: gradients that are not in the buffer yet.
        handed: gradients among the others that a compiled graph handed over.
        ahead: slots that were made ahead and that nobody has yet.
        given: whether every slot is some parameter's `.grad`.
        work: the running reduction, None before and after.
        wire: the buffer in the wire's dtype while it is in use.
    """

    __slots__ = (
        "_cdata",
        "_device",
        "_dtype",
        "_own_uses",
        "_storage",
        "ahead",
        "bucket",
        "flat",
        "given",
        "handed",
        "missing",
        "pointers",
        "started_ns",
        "views",
        "wire",
        "work",
    )

    def __init__(self, bucket: Bucket, dtype: torch.dtype, device: torch.device) -> None:
        self.bucket = bucket
        self._dtype = dtype
        self._device = device
        self.missing = len(bucket.slots)
        self.handed = 0
        self.ahead = 0
        self.given = False
        self.work: torch.distributed.Work | None = None
        self.started_ns = 0  # wall clock, of a reduction that is told; else 0
        self.wire: torch.Tensor | None = None
        self.flat = torch.empty(0)
        self.views: list[torch.Tensor] = []
        self.pointers: list[int] = []
        self._storage = self.flat.untyped_storage()
        self._cdata = self._storage._cdata
        self._own_uses = 0

    def await_gradients(self) -> None:
        """A reduction is armed: every gradient is missing."""
        self.missing = len(self.bucket.slots)
        self.handed = 0
        self.given = False
        self.work = None
        self.wire = None

    def open(self) -> bool:
        """Memory for a new backward that nobody else sees; returns whether it is new memory."""
        if self.views and torch_api.storage_uses(self._cdata) == self._own_uses + self.ahead:
            return False
        self.ahead = 0
        self.flat = torch.zeros(self.bucket.numel, dtype=self._dtype, device=self._device)
        self.views = [self.flat.as_strided(s.shape, s.strides, s.offset) for s in self.bucket.slots]
        self.pointers = [view.data_ptr() for view in self.views]
        self._storage = self.flat.untyped_storage()
        self._cdata = self._storage._cdata
        self._own_uses = torch_api.storage_uses(self._cdata)
        return True

    @property
    def in_graph(self) -> bool:
        """Whether compiled graphs handed over every gradient."""
        return self.handed == len(self.bucket.slots)

    @property
    def all_taken(self) -> bool:
        """Whether every slot that was handed out is some tensor's memory now, so some `.grad`'s."""
        slots = len(self.bucket.slots)
        if self.handed != slots:
            return False
        return torch_api.storage_uses(self._cdata) == self._own_uses + self.ahead + slots

    @property
    def sent(self) -> torch.Tensor:
        """What goes over the wire."""
        return self.flat if self.wire is None else self.wire


class Batch:
    """Gradients that come to a reducer together, again in each step.

    Args:
        indices: of their parameters.
        homes: of each gradient, its buffer and its place among the slots.

    Attributes:
        indices: as given.
        bits: the same as a set.
        counts: how many of them each buffer gets, and the bit of the last.
    """

    __slots__ = ("_homes", "bits", "counts", "indices")

    def __init__(self, indices: Sequence[int], homes: Sequence[tuple[BucketBuffer, int]]) -> None:
        self.indices = tuple(indices)
        self._homes = homes
        self.bits = reduce(or_, (1 << index for index in indices), 0)
        last = {buffer: 1 << i for i, (buffer, _) in zip(indices, homes, strict=True)}
        number = Counter(buffer for buffer, _ in homes)
        self.counts = [(buffer, count, last[buffer]) for buffer, count in number.items()]

    def views(self) -> list[torch.Tensor]:
        """Their slots in the memory that the buffers have now."""
        return [buffer.views[place] for buffer, place in self._homes]
