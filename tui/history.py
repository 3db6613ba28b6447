"""The past of a run: states kept now and then, and what was said since then read again.

A run of days has more records than a dashboard may hold. So none is held: every so many records the
state is packed with the places in the files, and a moment is the last such state before it moved on
by what the files hold. When the packed states take too much room every other one is let go, so the
way to any moment stays a fixed share of the run.
"""

from __future__ import annotations

import bisect
import pickle
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sgplan.reader import Heard, Reader
from sgplan.tui.state import RunState

EVERY = 10_000
"""Records between two states that are kept, at first: they are read in some 0.15 s."""

ROOM = 32 * 1024 * 1024
"""Bytes that kept states may take: two hours of 64 ranks at 10 steps a second stay within twice
`EVERY`."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where the reader was, and the state, packed."""

    time_ns: int
    packed: bytes


class Moment:
    """A run at a time in the past, which moves on as far as its files go.

    Attributes:
        time_ns: the time, on rank 0's clock.
        state: the run then.
    """

    def __init__(self, state: RunState, reader: Reader, time_ns: int) -> None:
        self.state = state
        self.time_ns = state.now_ns
        self._reader = reader
        self._records: Iterator[Heard] = iter(())
        self._next: Heard | None = None
        self.to(time_ns)

    def to(self, time_ns: int) -> None:
        """Move on to a time."""
        self._forward(lambda heard: False, time_ns)
        self.time_ns = max(self.time_ns, time_ns)

    def to_next(self, fits: Callable[[Heard], bool]) -> bool:
        """Move on behind the next record that fits; whether there is one. If not, to the end."""
        return self._forward(fits, None)

    def _forward(self, fits: Callable[[Heard], bool], until_ns: int | None) -> bool:
        while heard := self._peek():
            if until_ns is not None and heard.time_ns > until_ns:
                return False
            self._next = None
            self.state.take(heard)
            self.time_ns = max(self.time_ns, heard.time_ns)
            if fits(heard):
                return True
        return False

    def _peek(self) -> Heard | None:
        if self._next is None:
            self._next = next(self._records, None)
        if self._next is None:  # the files may have grown
            self._records = self._reader.records()
            self._next = next(self._records, None)
        return self._next


class History:
    """Of one run.

    Args:
        folder: of the run.
        every, room: as `EVERY` and `ROOM`.
    """

    def __init__(self, folder: Path, every: int = EVERY, room: int = ROOM) -> None:
        self._folder = folder
        self._every = every
        self._room = room
        self._since = 0
        self._kept: list[_Kept] = []

    def said(self, state: RunState, reader: Reader) -> None:
        """One more record went into the state; the state is kept when its turn has come."""
        self._since += 1
        if self._since < self._every:
            return
        self._since = 0
        packed = zlib.compress(pickle.dumps((reader.places(), state)), level=1)
        self._kept.append(_Kept(state.now_ns, packed))
        if sum(len(kept.packed) for kept in self._kept) > self._room:
            del self._kept[::2]
            self._every *= 2

    def at(self, time_ns: int, shown: Moment | None = None) -> Moment:
        """The run at a time: all records up to it, none after.

        Args:
            shown: moved on instead, where no state that is kept lies nearer.
        """
        place = bisect.bisect_right(self._kept, time_ns, key=lambda kept: kept.time_ns)
        kept = self._kept[place - 1] if place else None
        nearest = 0 if kept is None else kept.time_ns
        if shown is not None and nearest <= shown.time_ns <= time_ns:
            shown.to(time_ns)
            return shown
        if kept is None:
            return Moment(RunState(), Reader(self._folder), time_ns)
        # Our own bytes from this very process: nothing of the folder is unpickled.
        places, state = pickle.loads(zlib.decompress(kept.packed))
        return Moment(state, Reader(self._folder, places), time_ns)
