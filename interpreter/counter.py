"""The program counter of one rank: which instruction it is at, readable while it hangs.

A small file mapped into memory: writing costs no system call and takes no lock, so the rank writes
wherever it may stay, and whoever maps the file sees the truth even when the rank is stopped. Beside
the current place stands what places have cost in the steps that were kept in full, from a place's
second time on: the first may compile. Standard library only.

Place and time are one word of 64 bits, which a machine writes and reads whole.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Final

from sgplan.interpreter.birth import UNTOLD, Birth, birth_of

VERSION: Final = 2
PLACES: Final = 256
"""Places that have a name; what comes beyond them is at `elsewhere`."""

ELSEWHERE: Final = "script"

MOST: Final = 2000
"""Spans that are kept."""

_MAGIC = b"SGPC"
_HEADER = struct.Struct("<4sIQI")  # magic, version, pid, places used
_USED = struct.Struct("<I")
_USED_AT = 16
_BIRTH = struct.Struct("<Q16s")  # ticks, boot; zeros where nobody tells
_BIRTH_AT = 24
_NOW = 8  # the word at byte 64: place in the upper 8 bits, below them wall-clock ns / 256
_STEP = 9
_TIME = (1 << 56) - 1
_HOST_AT, _HOST = 128, 64
_COST = struct.Struct("<QQ")  # times, nanoseconds
_NAME = 112
_ROW = _COST.size + _NAME
_TABLE_AT = 4096
SIZE: Final = _TABLE_AT + PLACES * _ROW


class Counter:
    """The writing side, owned by one process; what a forked child does is written nowhere.

    Places nest: a wait lies in a backward. `enter` and `leave` run with cold caches, so each is one
    frame with one write.

    Attributes:
        spans: what was left, with begin and end in wall-clock nanoseconds; None keeps neither spans
            nor costs.
    """

    __slots__ = (
        "__weakref__",
        "_begun",
        "_inside",
        "_map",
        "_names",
        "_spent",
        "_times",
        "_words",
        "spans",
    )

    def __init__(self, path: Path | str) -> None:
        """Make the file.

        Raises:
            OSError: it cannot be made, or its disk is full.
        """
        partial = Path(path).with_suffix(".tmp")
        try:
            with partial.open("wb") as file:
                # Not merely truncated: a write into a page without a block ends the process.
                os.posix_fallocate(file.fileno(), 0, SIZE)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        with Path(path).open("r+b") as file:
            self._use(mmap.mmap(file.fileno(), SIZE))
        self.spans: list[tuple[int, int, int]] | None = None
        self._names: dict[str, int] = {}
        self._times: list[int] = []
        self._spent: list[int] = []
        self._inside: list[int] = []
        self._begun: list[int] = []  # when they were entered, in nanoseconds
        self.place(ELSEWHERE)
        self.stepped(0)
        os.register_at_fork(after_in_child=self._alone)
        _BIRTH.pack_into(self._map, _BIRTH_AT, *birth_of(os.getpid()))
        host = socket.gethostname().encode()[:_HOST]
        self._map[_HOST_AT : _HOST_AT + len(host)] = host
        _HEADER.pack_into(self._map, 0, _MAGIC, VERSION, os.getpid(), len(self._times))

    def _use(self, mapped: mmap.mmap) -> None:
        self._map = mapped
        self._words = memoryview(mapped).cast("Q")

    def _alone(self) -> None:
        """A forked child, a worker of a data loader, has the object and not the file."""
        self._use(mmap.mmap(-1, SIZE))

    def place(self, name: str) -> int:
        """The number of a place; a new one gets a row in the table."""
        known = self._names.get(name)
        if known is not None:
            return known
        if len(self._times) == PLACES:
            return 0
        number = self._names[name] = len(self._times)
        self._times.append(-1)
        self._spent.append(0)
        at = _TABLE_AT + number * _ROW + _COST.size
        text = name.encode("utf-8")[:_NAME]
        self._map[at : at + len(text)] = text
        _USED.pack_into(self._map, _USED_AT, len(self._times))
        return number

    def names(self) -> list[str]:
        """Of the places, by number."""
        return list(self._names)

    def enter(self, place: int) -> None:
        """The rank is at this place from now on."""
        now = time_ns()
        self._inside.append(place)
        self._begun.append(now)
        self._words[_NOW] = place << 56 | now >> 8

    def leave(self, place: int) -> None:
        """It is over, and whatever was entered in it and not left, by an exception."""
        now = time_ns()
        inside, begun, kept = self._inside, self._begun, self.spans is not None
        try:
            while inside:
                left, since = inside.pop(), begun.pop()
                if kept:
                    self._keep(left, since, now)
                if left == place:
                    break
            self._words[_NOW] = inside[-1] << 56 | begun[-1] >> 8 if inside else now >> 8
        except IndexError:  # another thread of the script left a place, or ended the step, between
            return

    def _keep(self, place: int, since: int, now: int) -> None:
        times = self._times[place] = self._times[place] + 1
        if times:
            self._spent[place] += now - since
        if self.spans is not None and len(self.spans) < MOST:
            self.spans.append((place, since, now))

    def stepped(self, step: int) -> None:
        """So many steps have ended, and all that was entered in them."""
        self._inside.clear()  # by calls that raised and whose error the script caught
        self._begun.clear()
        self._words[_NOW] = time_ns() >> 8
        self._words[_STEP] = step

    def publish(self) -> None:
        """Write down what places have cost; from any thread, now and then."""
        for place, (times, spent) in enumerate(zip(self._times, self._spent, strict=True)):
            if place and times > 0:
                _COST.pack_into(self._map, _TABLE_AT + place * _ROW, times, spent)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is.

    Attributes:
        place: an instruction's key (`wait b0`), or `script` outside all of them.
        since_ns: wall-clock nanoseconds of the rank's own clock.
        step: steps that had ended.
        pid, host, born: of the rank's process.
    """

    place: str
    since_ns: int
    step: int
    pid: int
    host: str = ""
    born: Birth = UNTOLD


@dataclass(frozen=True, slots=True)
class Cost:
    """What a place has cost in the steps that were kept: how often it was left, the seconds in it.

    Its first time is left out.
    """

    place: str
    times: int
    seconds: float


class CounterFile:
    """The reading side: of a run that goes on, or of one that has ended.

    Raises:
        ValueError: the file is no counter of this version.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size != SIZE:
                raise ValueError(f"{path} is no program counter")
            self._map = mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)
        magic, version, self.pid, _ = _HEADER.unpack_from(self._map, 0)
        if magic != _MAGIC or version != VERSION:
            raise ValueError(f"{path} is no program counter of version {VERSION}")
        self.host = self._text(_HOST_AT, _HOST)
        self.born = Birth(*_BIRTH.unpack_from(self._map, _BIRTH_AT))
        self._words = memoryview(self._map).cast("Q")

    def position(self) -> Position | None:
        """Where the rank is; None when it writes faster than this can read."""
        words = self._words
        for _ in range(100):
            step, now = words[_STEP], words[_NOW]
            if words[_STEP] == step and words[_NOW] == now:
                since = (now & _TIME) << 8
                return Position(self._name(now >> 56), since, step, self.pid, self.host, self.born)
        return None

    def costs(self) -> list[Cost]:
        """Of every place that was left at least twice, in the order of their first use."""
        (used,) = _USED.unpack_from(self._map, _USED_AT)
        used = min(used, PLACES)  # a damaged file may say anything
        rows = ((n, *_COST.unpack_from(self._map, _TABLE_AT + n * _ROW)) for n in range(used))
        return [Cost(self._name(n), times, spent / 1e9) for n, times, spent in rows if times]

    def close(self) -> None:
        self._words.release()
        self._map.close()

    def _name(self, place: int) -> str:
        return self._text(_TABLE_AT + place * _ROW + _COST.size, _NAME)

    def _text(self, at: int, size: int) -> str:
        return self._map[at : at + size].rstrip(b"\0").decode("utf-8", "replace")
