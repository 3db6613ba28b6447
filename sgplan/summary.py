"""The fold of a run's events: what every rank reported, as numbers and folded lines.

Pure: events in, a `Summary` out; no files, no clock, no text layout. Progress line, end summary and
`report.json` all read it.
"""

from __future__ import annotations

import json
import statistics
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.interpreter import events


@dataclass(slots=True)
class RankState:
    """What one rank has reported in its latest attempt; `attempts` counts the earlier ones too."""

    rank: int
    world: int = 1
    python: str = ""
    torch: str = ""
    attempts: int = 0
    roots: list[events.RootFound] = field(default_factory=list)
    steps: int = 0
    loss: float | None = None
    skipped: int = 0
    seconds: array[float] = field(default_factory=lambda: array("d"))
    waits: array[float] = field(default_factory=lambda: array("d"))
    owns: array[float] = field(default_factory=lambda: array("d"))
    samples: array[int] = field(default_factory=lambda: array("q"))
    compiling: str | None = None
    compiles: list[events.CompileFinished] = field(default_factory=list)
    dropped: int = 0
    ended: events.ScriptEnded | None = None


@dataclass(frozen=True, slots=True)
class Folded:
    """Equal lines of several ranks, shown once.

    Attributes:
        subject: what the line is about.
        text: the line.
        ranks: who said it, ascending; empty when the run itself did.
        count: how often it was said, all ranks together.
        seconds: what it cost the rank that it cost most.
    """

    subject: str
    text: str
    ranks: tuple[int, ...]
    count: int
    seconds: float = 0.0


class Fold:
    """Counts equal (subject, text) pairs by rank, in the order in which they first came."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[int, int]] = {}
        self._seconds: dict[tuple[str, str], dict[int, float]] = {}

    def add(self, rank: int, subject: str, text: str, seconds: float = 0.0) -> None:
        by_rank = self._seen.setdefault((subject, text), {})
        by_rank[rank] = by_rank.get(rank, 0) + 1
        spent = self._seconds.setdefault((subject, text), {})
        spent[rank] = spent.get(rank, 0.0) + seconds

    def replace(self, rank: int, subject: str, text: str) -> None:
        """What the rank said of the subject before no longer holds."""
        for (about, _), by_rank in self._seen.items():
            if about == subject:
                by_rank.pop(rank, None)
        self.add(rank, subject, text)

    def lines(self) -> list[Folded]:
        return [
            Folded(
                subject,
                text,
                tuple(sorted(rank for rank in by_rank if rank >= 0)),
                sum(by_rank.values()),
                max(self._seconds[subject, text].values()),
            )
            for (subject, text), by_rank in self._seen.items()
            if by_rank
        ]


class Summary:
    """State of a run.

    Attributes:
        levels: service levels that were breached, each with the last that was said of it.
    """

    def __init__(self) -> None:
        self.ranks: dict[int, RankState] = {}
        self.engines = Fold()
        self.paths = Fold()
        self.fallbacks = Fold()
        self.recompiles = Fold()
        self.misses = Fold()
        self.guard_misses: list[tuple[int, events.GuardMissed]] = []
        self.overridden = Fold()
        self.missed = Fold()
        self.notes = Fold()
        self.levels: dict[str, events.SloBreached | events.SloCleared] = {}
        self._diagnostics: dict[str, set[int]] = {}

    def take(self, rank: int, event: Any) -> None:
        """Move on by one event; the run's own come as rank -1."""
        if rank < 0:
            self._of_run(event)
            return
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, self.ranks.setdefault(rank, RankState(rank)), event)

    @property
    def diagnostics(self) -> list[tuple[Diagnostic, tuple[int, ...]]]:
        """Distinct refusals and warnings of the ranks, with the ranks that found them."""
        return [
            (Diagnostic.from_wire(json.loads(wire)), tuple(sorted(ranks)))
            for wire, ranks in self._diagnostics.items()
        ]

    @property
    def steps(self) -> int:
        """Steps that every rank has finished; ranks in which no model was found take none."""
        training = [state for state in self.ranks.values() if state.roots]
        return min((state.steps for state in training or self.ranks.values()), default=0)

    @property
    def loss(self) -> float | None:
        return self.ranks[min(self.ranks)].loss if self.ranks else None

    @property
    def compile_seconds(self) -> float:
        """Of the rank that compiled longest: the others waited for it or compiled beside it."""
        return max((sum(c.seconds for c in r.compiles) for r in self.ranks.values()), default=0.0)

    @property
    def cache_counts(self) -> dict[str, int]:
        """Compiles by what the cache did (`hit`, `part`, `miss`, `off`), all ranks together."""
        counts: dict[str, int] = {}
        for state in self.ranks.values():
            for compiled in state.compiles:
                counts[compiled.cache] = counts.get(compiled.cache, 0) + 1
        return counts

    def samples_per_second(self, last: int | None = None) -> float | None:
        """Medians of the steps after the first (which compiles), summed over ranks.

        The figures below take the same `last`: how many recent steps count, all without it.
        """
        rates = [_rate(state, last) for state in self.ranks.values()]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    def wait_share(self, last: int | None = None) -> float | None:
        """Exposed communication: time blocked in `wait` over step time, mean of the ranks."""
        return _mean(_share(r.waits, r.seconds, last) for r in self.ranks.values())

    def own_share(self) -> float | None:
        """Time in sgplan's own Python over step time, mean of the ranks."""
        return _mean(_share(r.owns, r.seconds, None) for r in self.ranks.values())

    def step_seconds(self) -> float | None:
        """Median step after the first, of all ranks together."""
        every = [s for state in self.ranks.values() for s in _settled(state.seconds, None)]
        return statistics.median(every) if every else None

    def _of_run(self, event: Any) -> None:
        if isinstance(event, events.SloBreached | events.SloCleared):
            self.levels[event.level] = event
        elif isinstance(event, events.NoteAdded):
            self.notes.add(-1, event.subject, event.text)

    # One handler per event; they are reached through the table below only.

    def _attached(self, state: RankState, event: events.RankAttached) -> None:
        if state.attempts:
            self._forgive(state)
        self.ranks[state.rank] = RankState(
            state.rank, event.world, event.python, event.torch, state.attempts + 1
        )

    def _forgive(self, state: RankState) -> None:
        """What stopped an earlier attempt is told, and does not judge the run: it began anew."""
        for found, ranks in self.diagnostics:
            if found.severity == "error" and state.rank in ranks:
                self.notes.add(state.rank, f"attempt {state.attempts}", found.message)
                self._diagnostics[_wire(found)].discard(state.rank)
        self._diagnostics = {wire: ranks for wire, ranks in self._diagnostics.items() if ranks}

    def _root(self, state: RankState, event: events.RootFound) -> None:
        state.roots.append(event)

    def _engine(self, state: RankState, event: events.EngineChosen) -> None:
        self.engines.replace(state.rank, event.root, f"{event.engine}: {event.why}")

    def _path(self, state: RankState, event: events.PathChosen) -> None:
        self.paths.replace(state.rank, event.root, f"{event.path}: {event.why}")

    def _fallback(self, state: RankState, event: events.FallbackTaken) -> None:
        self.fallbacks.add(state.rank, event.root, f"{event.what}: {event.why}")

    def _setting(self, state: RankState, event: events.SettingOverridden) -> None:
        self.overridden.add(state.rank, event.name, f"script {event.script}, plan {event.plan}")

    def _compile_started(self, state: RankState, event: events.CompileStarted) -> None:
        state.compiling = event.region

    def _compile_finished(self, state: RankState, event: events.CompileFinished) -> None:
        state.compiling = None
        state.compiles.append(event)

    def _guard_missed(self, state: RankState, event: events.GuardMissed) -> None:
        self.guard_misses.append((state.rank, event))
        place = f" at {event.where}" if event.where else ""
        change = "" if event.old == event.new else f" {event.old} -> {event.new}"
        text = f"{event.path}{change}{place}"
        fold = self.recompiles
        if event.did != "recompiled":
            text, fold = f"{text}, {event.did}", self.misses
        why = "" if event.why in event.path else f"; {event.why}"
        line = f"; to declare it: {event.line}" if event.line else why
        fold.add(state.rank, event.guard or "no guard", text + line, event.seconds)

    def _missed_capture(self, state: RankState, event: events.CaptureMissed) -> None:
        self.missed.add(state.rank, event.where, event.why)

    def _diagnostic(self, state: RankState, event: events.DiagnosticRaised) -> None:
        wire = _wire(Diagnostic.from_wire(event.diagnostic))
        self._diagnostics.setdefault(wire, set()).add(state.rank)

    def _note(self, state: RankState, event: events.NoteAdded) -> None:
        self.notes.add(state.rank, event.subject, event.text)

    def _step(self, state: RankState, event: events.StepFinished) -> None:
        state.steps += 1
        state.loss = event.loss
        state.skipped += event.skipped
        state.seconds.append(event.seconds)
        state.waits.append(event.wait)
        state.owns.append(event.own)
        state.samples.append(event.samples)

    def _script_ended(self, state: RankState, event: events.ScriptEnded) -> None:
        state.ended = event

    def _dropped(self, state: RankState, event: events.EventsDropped) -> None:
        state.dropped += event.count


_HANDLERS: dict[type, Callable[[Summary, RankState, Any], None]] = {
    events.RankAttached: Summary._attached,
    events.RootFound: Summary._root,
    events.EngineChosen: Summary._engine,
    events.PathChosen: Summary._path,
    events.FallbackTaken: Summary._fallback,
    events.SettingOverridden: Summary._setting,
    events.CompileStarted: Summary._compile_started,
    events.CompileFinished: Summary._compile_finished,
    events.GuardMissed: Summary._guard_missed,
    events.CaptureMissed: Summary._missed_capture,
    events.DiagnosticRaised: Summary._diagnostic,
    events.NoteAdded: Summary._note,
    events.StepFinished: Summary._step,
    events.ScriptEnded: Summary._script_ended,
    events.EventsDropped: Summary._dropped,
}


def _settled(values: array[Any], last: int | None) -> array[Any]:
    """Without the first step, whose time is compilation and warm-up; a lone step is all we have."""
    start = 1 if last is None else max(1, len(values) - last)
    return values[start:] or values


def _wire(found: Diagnostic) -> str:
    return json.dumps(found.to_wire(), sort_keys=True)


def _rate(state: RankState, last: int | None) -> float | None:
    if not state.seconds:
        return None
    seconds = statistics.median(_settled(state.seconds, last))
    return statistics.median(_settled(state.samples, last)) / seconds if seconds > 0 else None


def _share(part: array[float], whole: array[float], last: int | None) -> float | None:
    total = sum(_settled(whole, last))
    return sum(_settled(part, last)) / total if total > 0 else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
