"""The event files of a run as one stream: records of all ranks in the order of their times.

The same reader follows a run that grows and goes through a recorded one; it can begin anywhere that
a reader has been (`places`). What cannot be read is named, the rest is given.

All times come out on rank 0's clock, and nobody else needs to know of clocks. A rank learns how far
its own is off some records after its start: where the file holds those, they are moved as well.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sgplan.grammar.diagnostics import Diagnostic, Refused
from sgplan.interpreter import events
from sgplan.interpreter.record import Record, Tail

RUN = -1
"""The rank of what a run says of itself."""

_PREFIX, _SUFFIX = "events-", ".msgpack"
_AHEAD = 512 * 1024
"""Bytes of all files together that are decoded at once: what is waiting to be given stays small."""

_LEAST = 4 * 1024
"""Bytes of one file that are decoded at once, however many files there are."""

_FIRST = 512
"""Bytes of a file that are decoded first, and twice as many each time: before the first record of
many files is given, one of each has to be known."""

_UNTIL_ALIGNED = 10_000
"""Records in which the offset of a rank's clock is looked for, if no step ends before."""


class Heard(NamedTuple):
    """A record with who wrote it, -1 for the run itself, and when on rank 0's clock."""

    rank: int
    time_ns: int
    record: Record


class Place(NamedTuple):
    """How far into one file a reader has come.

    Attributes:
        offset: bytes.
        attempt: of the record before it.
        clock_ns: to be added to the rank's times.
    """

    offset: int = 0
    attempt: int = -1
    clock_ns: int = 0


@dataclass(slots=True)
class _File:
    """One file.

    Attributes:
        most: bytes to be decoded next.
        clock_ns: to be added to the times of what is decoded next, as far as it is known.
        settled: the attempt of which more will not be known.
        given: what was given last.
        waiting: decoded and not given yet.
        refused: why no more is read.
    """

    tail: Tail
    path: str
    most: int = _FIRST
    clock_ns: int = 0
    settled: int = -1
    given: Heard | None = None
    waiting: deque[Heard] = field(default_factory=deque[Heard])
    refused: Diagnostic | None = None


class Reader:
    """Goes through the event files of a folder once."""

    def __init__(self, folder: Path, places: Mapping[int, Place] | None = None) -> None:
        self._folder = folder
        self._begun = dict(places or {})
        self._files = {rank: _opened(folder, rank, place) for rank, place in self._begun.items()}
        self._next: list[tuple[int, int]] = []  # heap: time of its first waiting record, rank
        self._queued: set[int] = set()

    def records(self) -> Iterator[Heard]:
        """What has not been given yet. Ends where the files end now; asked again it goes on.

        Files are not flushed together: a record may be older than some that came before the end.
        """
        self._open()
        for rank in sorted(self._files):
            self._queue(rank)
        while self._next:
            _, rank = heapq.heappop(self._next)
            self._queued.discard(rank)
            file = self._files[rank]
            heard = file.given = file.waiting.popleft()
            self._queue(rank)
            yield heard

    def places(self) -> dict[int, Place]:
        """Where it is: a reader that begins there gives the records that this one has not given."""
        found = dict(self._begun)
        for rank, file in self._files.items():
            if file.given is not None:
                _, time_ns, record = file.given
                found[rank] = Place(record.end, record.attempt, time_ns - record.time_ns)
        return found

    def damage(self) -> list[Diagnostic]:
        """What cannot be read, however long one waits."""
        return [verdict for file in self._by_rank() if (verdict := _damage(file)) is not None]

    def verdicts(self) -> list[Diagnostic]:
        """What is wrong with the files, asked when nobody writes any more."""
        found = (_damage(file) or file.tail.verdict() for file in self._by_rank())
        return [verdict for verdict in found if verdict is not None]

    def _by_rank(self) -> list[_File]:
        return [self._files[rank] for rank in sorted(self._files)]

    def _open(self) -> None:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return  # gone while it was looked at: what was read stays
        for name in names:
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                rank = _rank(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
                if rank is not None and rank not in self._files:
                    self._files[rank] = _opened(self._folder, rank, Place())

    def _queue(self, rank: int) -> None:
        """See to it that the rank's next record is among those to choose from."""
        file = self._files[rank]
        if not file.waiting:
            most = max(_AHEAD // len(self._files), _LEAST)
            records = _read(file, most)
            while rank != RUN and records and not _is_settled(file, records):
                if not (more := _read(file, most)):
                    break
                records += more
            file.waiting.extend(_on_one_clock(rank, file, records))
        if file.waiting and rank not in self._queued:
            self._queued.add(rank)
            heapq.heappush(self._next, (file.waiting[0].time_ns, rank))


def _opened(folder: Path, rank: int, place: Place) -> _File:
    path = events_file(folder, rank)
    return _File(Tail(path, place.offset, place.attempt), str(path), clock_ns=place.clock_ns)


def _read(file: _File, most: int) -> list[Record]:
    tail = file.tail
    try:
        if os.stat(file.path).st_size <= tail.offset:  # nothing new, as nearly always
            return []
        size, file.most = min(file.most, most), min(2 * file.most, most)
        return tail.read(size)
    except FileNotFoundError:
        return []
    except Refused as refused:
        file.refused = refused.diagnostics[0]
        tail.damage = file.refused.message
    except OSError as error:
        tail.damage = error.strerror or str(error)
    return []


def _is_settled(file: _File, records: list[Record]) -> bool:
    """Whether the newest attempt's offset is among these, or will not come: a step has ended."""
    newest = records[-1].attempt
    if file.settled != newest and (
        len(records) >= _UNTIL_ALIGNED
        or any(
            record.attempt == newest and isinstance(record.event, _SETTLING) for record in records
        )
    ):
        file.settled = newest
    return file.settled == newest


_SETTLING = (events.ClockAligned, events.StepFinished)


def _on_one_clock(rank: int, file: _File, records: list[Record]) -> Iterator[Heard]:
    """A rank that was started again has the clock of before until it knows better."""
    offsets: dict[int, int] = {}
    for record in records:
        if isinstance(record.event, events.ClockAligned):
            offsets.setdefault(record.attempt, record.event.offset_ns)
    for record in records:
        file.clock_ns = offsets.get(record.attempt, file.clock_ns)
        yield Heard(rank, record.time_ns + file.clock_ns, record)


def _damage(file: _File) -> Diagnostic | None:
    if file.tail.damage is None:
        return None
    return file.refused or file.tail.verdict()


def _rank(name: str) -> int | None:
    return RUN if name == "run" else int(name) if name.isdigit() else None


def events_file(folder: Path, rank: int) -> Path:
    """Where a rank's events lie, or the run's own."""
    return folder / f"{_PREFIX}{'run' if rank == RUN else rank}{_SUFFIX}"
