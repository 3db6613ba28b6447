"""Which moment of a run is shown: the newest of a run that goes on, or any of its past.

The newest is always kept up to date, whatever is shown. Reads a run folder, draws nothing.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.interpreter import events
from sgplan.reader import Heard, Reader
from sgplan.tui.history import History, Moment
from sgplan.tui.rows import View
from sgplan.tui.source import Source
from sgplan.tui.state import RunState
from sgplan.tui.waiting import whereabouts

BUDGET = 0.05
"""Seconds that reading may take at once: a long run is opened in pieces, with keys between them."""

FIRST = 0.02
"""Seconds that it may take before the first frame: a short run is read, a long one begun."""

_LOOK = 16  # records between two looks at the clock


class Player:
    """One run at one moment.

    Attributes:
        source: the run's folder.
        playing: a past moment moves on with the clock.
        rank: the chosen one.
        words: the filter of the log.
        reading: the files hold more than was taken in yet.
    """

    def __init__(
        self,
        source: Source,
        now: Callable[[], int] = time.time_ns,
        history: History | None = None,
    ) -> None:
        self.source = source
        self.playing = False
        self.rank = 0
        self.words = ""
        self.reading = False
        self._now = now
        self._reader = Reader(source.folder.path)
        self._newest = RunState()
        self._history = history or History(source.folder.path)
        self._verdicts: list[Diagnostic] | None = None  # of files that nobody writes any more
        self._past: Moment | None = None
        self._ticked = now()

    @property
    def live(self) -> bool:
        """Whether the newest moment is shown."""
        return self._past is None

    @property
    def state(self) -> RunState:
        """The run at the moment that is shown."""
        return self._newest if self._past is None else self._past.state

    def tick(self) -> None:
        """Take in what is new; move on in the past when it is played."""
        now = self._now()
        passed, self._ticked = now - self._ticked, now
        self.take_in()
        if self._past is not None and self.playing:
            self.go(self.at + passed)

    def take_in(self, budget: float = BUDGET) -> None:
        """Read on for so many seconds."""
        deadline = time.monotonic() + budget
        self.reading = False
        for number, heard in enumerate(self._reader.records(), 1):
            self._verdicts = None
            self._newest.take(heard)
            self._history.said(self._newest, self._reader)
            if number % _LOOK == 0 and time.monotonic() > deadline:
                self.reading = True
                return

    def view(self, listing: bool = False) -> View:
        """What screens show.

        Args:
            listing: with the chosen rank's program and what its places have cost.
        """
        positions = self.source.positions()
        end = self.source.end(positions)
        if not self.live:
            positions = {}
        dead = self.source.dead(positions)
        if not self.live:
            now = self.at
        else:
            now = self._now() if end is None else end.time_ns
        if end is not None and positions:  # a report tells its end to a second
            now = max(now, *(p.since_ns for p in positions.values()))
        where = whereabouts(self.state, positions, now, dead)
        if self.rank not in where:
            self.rank = min(where, default=0)
        if end is not None and not self.reading:
            if self._verdicts is None:
                self._verdicts = self._reader.verdicts()
            damage = self._verdicts
        else:
            damage = self._reader.damage()
        return View(
            state=self.state,
            where=where,
            live=self.live,
            end=end,
            part=self.source.part(self.rank) if listing else None,
            costs=self.source.costs(self.rank) if listing else (),
            rank=self.rank,
            faults=[*self.source.faults, *(found.message for found in damage)],
            words=self.words,
            reading=self.reading,
            now_ns=now,
        )

    # --- the past --------------------------------------------------------------------------------

    @property
    def began(self) -> int:
        return self._newest.began_ns

    @property
    def until(self) -> int:
        return self._newest.now_ns

    @property
    def at(self) -> int:
        """The moment that is shown, on rank 0's clock."""
        return self.until if self._past is None else self._past.time_ns

    @property
    def share(self) -> float:
        """How far into the run that is, from 0 to 1."""
        whole = self.until - self.began
        return (self.at - self.began) / whole if whole else 1.0

    def go(self, time_ns: int) -> None:
        """Show a moment; the newest one follows the run again."""
        time_ns = max(time_ns, self.began)
        if time_ns >= self.until:
            self.follow()
        else:
            self._past = self._history.at(time_ns, self._past)

    def hold(self) -> None:
        """Stay at the newest moment while the run goes on."""
        if self._past is None and self.until:
            self._past = self._history.at(self.until)

    def follow(self) -> None:
        """Show the newest moment."""
        self._past = None
        self.playing = False

    def to_share(self, share: float) -> None:
        """Show the moment at a share of the run, from 0 to 1."""
        self.playing = False
        self.go(self.began + round(share * (self.until - self.began)))

    def step(self, by: int) -> None:
        """Go a step of the chosen rank on or back."""
        self.playing = False
        if by < 0:
            self._step_back()
        elif self._past is not None and not self._past.to_next(self._is_step):
            self.follow()

    def _step_back(self) -> None:
        """To the end of the step before: the last one that ended before the moment shown."""
        view = self.state.ranks.get(self.rank)
        if view is not None:
            ended = view.step_ns if view.step_ns < self.at else view.before_ns
            if ended:
                self._past = self._history.at(ended)

    def _is_step(self, heard: Heard) -> bool:
        return heard.rank == self.rank and isinstance(heard.record.event, events.StepFinished)

    def jump(self, by: int) -> None:
        """Go to the next moment worth a look, or the one before."""
        self.playing = False
        times = sorted(mark.time_ns for mark in self._newest.marks)
        if by > 0:
            place = bisect.bisect_right(times, self.at)
        else:
            place = bisect.bisect_left(times, self.at) - 1
        if 0 <= place < len(times):
            self._past = self._history.at(times[place], self._past)
