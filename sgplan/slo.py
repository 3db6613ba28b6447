"""`slo`: service levels of a run, judged on what its ranks report.

`ServiceLevels` is a pure fold: steps in, breaches and clears out. A level is judged over the last
`WINDOW` steps, the first step of an attempt left out, because it compiles; a step takes as long as
on its slowest rank. `SloWatch` gives it the events of a run that goes on, and writes what it finds
into the run folder, as the run's own events beside those of the ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Literal

from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.plan import PlanFile, Slo
from sgplan.interpreter import events
from sgplan.interpreter.record import Record, Recorder, header
from sgplan.reader import RUN, events_file

WINDOW = 200
AHEAD = 10_000
"""Steps of a rank that are kept beside, while those of others are not written yet."""

LEAST = 10
"""Steps before a level is judged at all."""

Level = Literal["step_p99", "throughput"]


def p99(values: list[float]) -> float:
    """The 99th percentile by nearest rank: of fewer than 100 values the largest."""
    return sorted(values)[ceil(0.99 * len(values)) - 1]


@dataclass(slots=True)
class _Steps:
    """The recent steps of one rank, the first of all left out."""

    seen: int = 0
    recent: deque[tuple[float, int]] = field(
        default_factory=lambda: deque[tuple[float, int]](maxlen=WINDOW + AHEAD)
    )

    def window(self, seen: int) -> list[tuple[float, int]]:
        """Seconds and samples of the last `WINDOW` steps when so many had been seen."""
        ahead = self.seen - seen
        while len(self.recent) > WINDOW + ahead:
            self.recent.popleft()
        return list(self.recent)[: len(self.recent) - ahead]


class ServiceLevels:
    """Judges one run.

    Attributes:
        breached: levels that do not hold now.
        measured: of each level, as last judged: seconds, samples per second.
    """

    def __init__(self, wanted: Slo, world: int) -> None:
        self._wanted = wanted
        self._world = world
        self._steps: dict[int, _Steps] = {}
        self.breached: set[Level] = set()
        self.measured: dict[Level, float] = {}

    def restarted(self, rank: int) -> None:
        """A rank begins anew: its next step compiles again."""
        self._steps[rank] = _Steps()

    def step(
        self, rank: int, event: events.StepFinished
    ) -> list[events.SloBreached | events.SloCleared]:
        """What changes with a step; judged when the last of the ranks has finished it."""
        steps = self._steps.setdefault(rank, _Steps())
        steps.seen += 1
        if steps.seen > 1:
            steps.recent.append((event.seconds, event.samples))
        known = self._steps.values()
        if len(known) < self._world or any(other.seen < steps.seen for other in known):
            return []
        windows = [other.window(steps.seen) for other in known]
        if min(map(len, windows)) < LEAST:
            return []
        return self._judge(windows, event.step)

    def _judge(
        self, windows: Sequence[list[tuple[float, int]]], step: int
    ) -> list[events.SloBreached | events.SloCleared]:
        count = min(map(len, windows))
        seconds = [[took for took, _ in window[-count:]] for window in windows]
        self.measured["step_p99"] = p99([max(times) for times in zip(*seconds, strict=True)])
        self.measured["throughput"] = sum(
            sum(samples for _, samples in window) / max(sum(took for took, _ in window), 1e-9)
            for window in windows
        )
        limits: tuple[tuple[Level, float | None], ...] = (
            ("step_p99", self._wanted.step_p99),
            ("throughput", self._wanted.throughput),
        )
        changed: list[events.SloBreached | events.SloCleared] = []
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
        self.levels: ServiceLevels | None = None
        self.enforced = False

    def take(self, rank: int, record: Record) -> None:
        """What a rank has reported."""
        event = record.event
        if isinstance(event, events.RankAttached):
            self._attached(rank, event)
        elif isinstance(event, events.StepFinished) and self.levels is not None:
            for found in self.levels.step(rank, event):
                self._write(record.time_ns, found)

    def _attached(self, rank: int, event: events.RankAttached) -> None:
        if self.levels is not None:
            self.levels.restarted(rank)
            return
        try:
            wanted = self._plan.resolve(event.world, "cpu").slo
        except Refused:
            return  # the ranks say so themselves
        if wanted.step_p99 is not None or wanted.throughput is not None:
            self.levels = ServiceLevels(wanted, event.world)
            self.enforced = wanted.enforce == "on"

    def _write(self, time_ns: int, found: events.SloBreached | events.SloCleared) -> None:
        """At the time of the step that it was found in."""
        if self._recorder is None:
            self._recorder = Recorder(events_file(self._folder, RUN), header(RUN, 0, "apply"))
        fields = (found.level, found.limit, found.measured, found.step)
        self._recorder.emit(type(found), *fields, _now=lambda: time_ns)

    def close(self) -> None:
        """Everything is written."""
        if self._recorder is not None:
            self._recorder.close()
