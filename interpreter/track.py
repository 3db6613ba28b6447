"""Where a rank is: told to its program counter always, and span by span now and then.

The counter (`counter.py`) always knows the place where a rank may stay. Of one step in a second or
two every instruction is told, and the spans are kept and reported, so that a trace shows what steps
are made of, while other steps cost little and an event file stays small. They are the steps whose
number a power of two divides: ranks that count their seconds differently, and so take another
power, still tell the same steps, and a trace can link their reductions. Before the pace is known
they are the powers of two themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sgplan.interpreter.counter import MOST, Counter
from sgplan.interpreter.events import StepTraced

PERIOD = 1.0
"""Seconds at least, and twice as many at most, between two steps that are told in full."""


class Track(Protocol):
    """What instructions and calls tell."""

    @property
    def full(self) -> bool:
        """Whether this step is told in full, also where no rank stays."""
        ...

    def place(self, name: str) -> int:
        """The number of a place."""
        ...

    def enter(self, place: int) -> None:
        """The rank is at a place from now on."""
        ...

    def leave(self, place: int) -> None:
        """It is over, and whatever was entered in it and not left, by an exception."""
        ...

    def span(self, name: str, began_ns: int) -> None:
        """Something that went on beside the places is over; wall-clock nanoseconds."""
        ...

    def step_ended(self, step: int) -> None:
        """A step is over; so many have ended now."""
        ...

    def publish(self) -> None:
        """Write down what places have cost; from any thread."""
        ...


class NoTrack:
    """Where nobody looks: a rank that only plans."""

    full = False

    def place(self, name: str) -> int:
        return 0

    def enter(self, place: int) -> None:
        pass

    def leave(self, place: int) -> None:
        pass

    def span(self, name: str, began_ns: int) -> None:
        pass

    def step_ended(self, step: int) -> None:
        pass

    def publish(self) -> None:
        pass


class Tracked(Counter):
    """The track of a rank that trains: its program counter, which keeps the spans of some steps.

    Args:
        path: of the counter.
        emit: `emit(event_class, *fields)`.

    Raises:
        OSError: the file cannot be made.
    """

    __slots__ = (
        "_emit",
        "_every",
        "_paced",
        "_told",
    )

    def __init__(self, path: Path, emit: Callable[..., None]) -> None:
        super().__init__(path)
        self._emit = emit
        self._told = 0.0
        self._every = 0  # which steps are told; 0 before their pace is known
        self._paced: tuple[float, int] | None = None  # when it was asked, and at which step
        self.spans = []

    @property
    def full(self) -> bool:
        return self.spans is not None

    def span(self, name: str, began_ns: int) -> None:
        if self.spans is not None and len(self.spans) < MOST:
            self.spans.append((self.place(name), began_ns, time.time_ns()))

    def step_ended(self, step: int) -> None:
        self.stepped(step)
        now = time.monotonic()
        if self.spans is not None:
            names = self.names()
            spans = [(names[place], began, ended) for place, began, ended in self.spans]
            self._emit(StepTraced, step, spans)
            self._told = now
            self.spans = None
        if self._paced is None:  # the first step compiles
            self._paced = now, step
        elif now - self._paced[0] >= PERIOD:
            self._every = every(now - self._paced[0], step - self._paced[1])
            self._paced = now, step
        coming = step + 1
        if not self._every:
            if coming & step == 0:
                self.spans = []
        # A step that took long makes them few: what is told is bounded all the same.
        elif not coming % self._every and now - self._told >= PERIOD / 2:
            self.spans = []


def every(seconds: float, steps: int) -> int:
    """The least power of two so that as many steps take `PERIOD`, where `steps` took `seconds`."""
    number = 1
    while number * seconds < PERIOD * steps:
        number *= 2
    return number
