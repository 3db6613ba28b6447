"""`slo`: service levels of a run, judged on what its ranks report.

`ServiceLevels` is a pure fold: steps in, breaches and clears out. A level is judged over the last
`WINDOW` steps, the first step of an attempt left out, because it compiles; a step takes as long as
on its slowest rank. A step is complete when every rank has finished it, but for those that take no
more steps: their script has ended, or they fell silent while the others go on. `SloWatch` gives it
the events of a run that goes on, and writes what it finds into the run folder, as the run's own
events beside those of the ranks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Literal

from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.plan import PlanFile, Slo
from sgplan.interpreter import events
from sgplan.interpreter.record import Recorder, header
from sgplan.reader import RUN, Heard, events_file

WINDOW = 200
AHEAD = 10_000
"""Steps of a rank that are kept beside, while those of others are not written yet."""

LEAST = 10
"""Steps before a level is judged while a run goes on; what has fewer is judged at its end."""

SILENT = 10.0
"""Seconds after which a rank that others have left `LEAST` steps behind is not waited for: a rank
that still writes is heard of within a second."""

UNJUDGED = "no level was judged: no step ended but the first, which compiles"

Level = Literal["step_p99", "throughput"]
Found = events.SloBreached | events.SloCleared


def p99(values: list[float]) -> float:
    """The 99th percentile by nearest rank: of fewer than 100 values the largest."""
    return sorted(values)[ceil(0.99 * len(values)) - 1]


@dataclass(slots=True)
class _Rank:
    """What one rank has told.

    Attributes:
        last: its last step.
        heard_ns: when that ended.
        ended: it takes no more.
        waiting: steps that others have not finished yet: number, seconds, samples.
    """

    last: int = 0
    heard_ns: int = 0
    ended: bool = False
    waiting: deque[tuple[int, float, int]] = field(
        default_factory=lambda: deque[tuple[int, float, int]](maxlen=AHEAD)
    )

    def take(self, step: int) -> tuple[float, int] | None:
        """Seconds and samples of a step, None when the rank did not take it."""
        while self.waiting and self.waiting[0][0] < step:
            self.waiting.popleft()
        if not self.waiting or self.waiting[0][0] != step:
            return None
        _, seconds, samples = self.waiting.popleft()
        return seconds, samples


@dataclass(frozen=True, slots=True)
class _Step:
    """A complete step: seconds on its slowest rank and on average, samples of all ranks."""

    slowest: float
    mean: float
    samples: int


class ServiceLevels:
    """Judges one run.

    Attributes:
        breached: levels that do not hold now.
        measured: of each level, as last judged: seconds, samples per second.
        stepped: whether any step was told.
    """

    def __init__(self, wanted: Slo, world: int) -> None:
        self._wanted = wanted
        self._world = world
        self.breached: set[Level] = set()
        self.measured: dict[Level, float] = {}
        self.stepped = False
        self.restarted()

    def restarted(self) -> None:
        """The ranks begin anew, at step 1, which compiles again."""
        self._ranks = {rank: _Rank() for rank in range(self._world)}
        self._steps: deque[_Step] = deque(maxlen=WINDOW)
        self._next = 1
        self._began_ns = 0
        self._now_ns = 0

    def step(self, rank: int, event: events.StepFinished, time_ns: int = 0) -> list[Found]:
        """What changes with a step; judged when the last of the ranks has finished it.

        Args:
            time_ns: when it ended.
        """
        self.stepped = True
        self._began_ns = self._began_ns or time_ns
        self._now_ns = max(self._now_ns, time_ns)
        told = self._ranks.setdefault(rank, _Rank())
        told.last, told.heard_ns = event.step, time_ns
        told.waiting.append((event.step, event.seconds, event.samples))
        return self._go_on()

    def ended(self, rank: int) -> list[Found]:
        """What changes when a rank takes no more steps: nobody waits for it."""
        self._ranks.setdefault(rank, _Rank()).ended = True
        return self._go_on()

    def finish(self) -> list[Found]:
        """What changes at the end: all that was told counts, and a few steps are better than none.

        With no step but the first `measured` stays empty.
        """
        found = [each for rank in list(self._ranks) for each in self.ended(rank)]
        if not self.measured and self._steps:
            found += self._judge(self._next - 1)
        return found

    def _go_on(self) -> list[Found]:
        """Judge the steps that are complete now."""
        found: list[Found] = []
        furthest = max(rank.last for rank in self._ranks.values())
        while self._next <= furthest and self._complete(self._next, furthest):
            taken = [rank.take(self._next) for rank in self._ranks.values()]
            known = [each for each in taken if each is not None]
            if known and self._next > 1:
                seconds = [took for took, _ in known]
                samples = sum(count for _, count in known)
                self._steps.append(_Step(max(seconds), sum(seconds) / len(seconds), samples))
                if len(self._steps) >= LEAST:
                    found += self._judge(self._next)
            self._next += 1
        return found

    def _complete(self, step: int, furthest: int) -> bool:
        """Whether no rank is waited for in a step."""
        return all(
            rank.last >= step or rank.ended or self._is_over(rank, furthest)
            for rank in self._ranks.values()
        )

    def _is_over(self, rank: _Rank, furthest: int) -> bool:
        """Whether a rank takes no more steps as far as one can tell, as under `join()`."""
        silent = self._now_ns - max(rank.heard_ns, self._began_ns)
        return furthest - rank.last >= LEAST and silent > SILENT * 1e9

    def _judge(self, step: int) -> list[Found]:
        self.measured["step_p99"] = p99([each.slowest for each in self._steps])
        took = sum(each.mean for each in self._steps)
        self.measured["throughput"] = sum(each.samples for each in self._steps) / max(took, 1e-9)
        limits: tuple[tuple[Level, float | None], ...] = (
            ("step_p99", self._wanted.step_p99),
            ("throughput", self._wanted.throughput),
        )
        changed: list[Found] = []
        for level, limit in limits:
            if limit is None:
                continue
            found = self.measured[level]
            holds = found <= limit if level == "step_p99" else found >= limit
            if not holds and level not in self.breached:
                self.breached.add(level)
                changed.append(events.SloBreached(level, limit, found, step))
            elif holds and level in self.breached:
                self.breached.discard(level)
                changed.append(events.SloCleared(level, limit, found, step))
        return changed


class SloWatch:
    """Judges a run while it goes on.

    Args:
        plan: whose levels depend on the number of ranks, known when the first has attached.
    """

    def __init__(self, folder: Path, plan: PlanFile) -> None:
        self._folder = folder
        self._plan = plan
        self._recorder: Recorder | None = None
        self._attached: set[int] = set()  # ranks, in this attempt
        self._now_ns = 0
        self.levels: ServiceLevels | None = None
        self.enforced = False

    def take(self, heard: Heard) -> None:
        """What a rank has reported."""
        event = heard.record.event
        self._now_ns = heard.time_ns
        if isinstance(event, events.RankAttached):
            self._attach(heard.rank, event)
        elif self.levels is None:
            return
        elif isinstance(event, events.StepFinished):
            self._write(self.levels.step(heard.rank, event, heard.time_ns))
        elif isinstance(event, events.ScriptEnded):
            self._write(self.levels.ended(heard.rank))

    def _attach(self, rank: int, event: events.RankAttached) -> None:
        if self.levels is None:
            self._resolve(event.world)
        elif rank in self._attached:  # once an attempt: others follow, and may have stepped before
            self.levels.restarted()
            self._attached.clear()
        self._attached.add(rank)

    def _resolve(self, world: int) -> None:
        try:
            wanted = self._plan.resolve(world, "cpu").slo
        except Refused:
            return  # the ranks say so themselves
        if wanted.step_p99 is not None or wanted.throughput is not None:
            self.levels = ServiceLevels(wanted, world)
            self.enforced = wanted.enforce == "on"

    def _write(self, found: list[Found]) -> None:
        for each in found:
            self._emit(type(each), each.level, each.limit, each.measured, each.step)

    def _emit(self, event: type, *fields: object) -> None:
        """At the time of the step that it was found in."""
        if self._recorder is None:
            self._recorder = Recorder(events_file(self._folder, RUN), header(RUN, 0, "apply"))
        now_ns = self._now_ns
        self._recorder.emit(event, *fields, _now=lambda: now_ns)

    def close(self) -> None:
        """The run has ended: judge what was not judged, and write everything."""
        if self.levels is not None:
            self._write(self.levels.finish())
            if self.levels.stepped and not self.levels.measured:
                self._emit(events.NoteAdded, "slo", UNJUDGED)
        if self._recorder is not None:
            self._recorder.close()
