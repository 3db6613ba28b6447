"""What a run looks like at one moment: a fold of the events of its ranks.

Pure: (state, what was heard) in, the state moved on; no files, no clock, no layout. The same fold
serves a run that goes on and a recorded one that is looked at in the past, where it is begun anew
and given the records up to that moment. What it holds has a bound, however long the run is.
"""

from __future__ import annotations

import statistics
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, get_args

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.interpreter import events
from sgplan.reader import Heard
from sgplan.report import level_words

HISTORY = 121
"""Steps of a rank that are kept: what a plot shows, and the first one, which no plot shows."""

LOG = 2000
"""Log entries, and guard misses, that are kept; older ones are found by going back."""

MARKS = 10_000
"""Moments worth a look that are kept."""

RECENT = 50
"""Steps that figures are made of."""

SLOW = 2.0
"""A step that takes this many times the median of the rank's recent ones is worth a look."""

NOTABLE = 0.25
"""Of a step: how much more the others wait than a rank that they wait for."""

Kind = Literal["info", "note", "miss", "warning", "error", "slo"]
Phase = Literal["failed", "refused", "compiling", "training", "starting", "ended"]
_WORST_FIRST: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log.

    Attributes:
        time_ns: on rank 0's clock.
        rank: who said it; -1 for the run itself.
        kind: how much it matters.
        subject, text: what it is about, and what it says.
        step: the step that was running, from 1; 0 before the first.
        attempt: of the rank, from 0; one more whenever it was started again.
    """

    time_ns: int
    rank: int
    kind: Kind
    subject: str
    text: str
    step: int
    attempt: int = 0


@dataclass(slots=True)
class Series:
    """The last `HISTORY` values of something, four bytes each, the newest last."""

    _values: array[float] = field(default_factory=lambda: array("f"))

    def append(self, value: float) -> None:
        self._values.append(value)
        if len(self._values) > HISTORY:
            del self._values[0]

    def last(self, count: int = HISTORY) -> array[float]:
        """So many, or all that there are."""
        return self._values[-count:]

    def __len__(self) -> int:
        return len(self._values)


@dataclass(slots=True)
class RankView:
    """One rank now.

    Attributes:
        error_ns: of its times on rank 0's clock; None when that was not measured.
        last_ns: when it was last heard of.
        trains: whether a model was found in it.
        step_ns, before_ns: when its last step ended, and the one before.
        miss_seconds: what guard misses cost it.
        seconds, waits, samples: of the recent steps but the first, the newest last; losses of all.
        compiling: the region that is compiled now, and since when; empty when none is.
        groups: of each root, the ranks that reduce it; empty where all do.
    """

    rank: int
    pid: int = 0
    host: str = ""
    attempt: int = 0
    error_ns: int | None = None
    began_ns: int = 0
    last_ns: int = 0
    trains: bool = False
    step: int = 0
    step_ns: int = 0
    before_ns: int = 0
    loss: float | None = None
    skipped: int = 0
    resident: int = 0
    peak: int = 0
    device: int = 0
    compiling: str = ""
    compiling_since: int = 0
    compile_seconds: float = 0.0
    misses: int = 0
    miss_seconds: float = 0.0
    ended: events.ScriptEnded | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    seconds: Series = field(default_factory=Series)
    waits: Series = field(default_factory=Series)
    losses: Series = field(default_factory=Series)
    samples: Series = field(default_factory=Series)

    @property
    def phase(self) -> Phase:
        """What it does, in one word."""
        if self.ended is not None:
            if self.ended.how == "refused":
                return "refused"
            return "failed" if self.ended.failed else "ended"
        if self.compiling:
            return "compiling"
        return "training" if self.step else "starting"

    @property
    def last_seconds(self) -> float | None:
        """Of its last step."""
        return self.seconds.last(1)[0] if self.seconds else None

    @property
    def exposed(self) -> float | None:
        """The share of its recent steps that it was blocked in `wait`; None before any step."""
        whole = sum(self.seconds.last(RECENT))
        return sum(self.waits.last(RECENT)) / whole if whole else None


@dataclass(frozen=True, slots=True)
class Miss:
    """A guard miss, with when and where it happened."""

    time_ns: int
    rank: int
    step: int
    event: events.GuardMissed


@dataclass(frozen=True, slots=True)
class Stage:
    """A precision stage that was entered."""

    time_ns: int
    root: str
    step: int
    formats: str


@dataclass(slots=True)
class Level:
    """A service level that was breached at some time."""

    name: str
    limit: float
    measured: float
    holds: bool
    breaches: int
    since_step: int


MarkKind = Literal["miss", "slow", "failure", "slo"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment worth a look; what several ranks meet in one step of one attempt is one."""

    time_ns: int
    kind: MarkKind
    step: int
    attempt: int


class RunState:
    """A run at one moment.

    Attributes:
        ranks: by number.
        log: the newest last.
        misses: guard misses, the newest last.
        stages, scales: of precision, as they were entered; the scale of each root now.
        levels: service levels that were breached, by name.
        graphs: captured, each once: root, direction, digest, region, ops.
        began_ns, now_ns: first and last record seen, on rank 0's clock.
        marks: moments worth a look, the newest last.
    """

    def __init__(self) -> None:
        self.ranks: dict[int, RankView] = {}
        self.world = 0
        self.log: deque[Entry] = deque(maxlen=LOG)
        self.misses: deque[Miss] = deque(maxlen=LOG)
        self.stages: list[Stage] = []
        self.scales: dict[str, float] = {}
        self.levels: dict[str, Level] = {}
        self.graphs: dict[str, events.GraphCaptured] = {}
        self.began_ns = 0
        self.now_ns = 0
        self.marks: deque[Mark] = deque(maxlen=MARKS)

    def take(self, heard: Heard) -> None:
        """Move on by one record; the run's own records come as rank -1."""
        rank, time_ns, record = heard
        if rank >= 0:
            view = self.ranks.get(rank)
            if view is None:
                view = self.ranks[rank] = RankView(rank)
            view.last_ns = time_ns
            view.attempt = record.attempt
        self.now_ns = max(self.now_ns, time_ns)
        self.began_ns = self.began_ns or time_ns
        handler = _HANDLERS.get(type(record.event))
        if handler is not None:
            handler(self, rank, time_ns, record.event)

    # --- what screens ask ------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps that every rank has finished; ranks in which no model was found take none."""
        training = [view for view in self.ranks.values() if view.trains]
        return min((view.step for view in training or self.ranks.values()), default=0)

    @property
    def phase(self) -> Phase:
        """Of the run as a whole: the worst that any rank is in."""
        phases: list[Phase] = [view.phase for view in self.ranks.values()]
        return min(phases, key=_WORST_FIRST.index) if phases else "starting"

    @property
    def loss(self) -> float | None:
        """Of the first rank."""
        return self.ranks[min(self.ranks)].loss if self.ranks else None

    @property
    def samples_per_second(self) -> float | None:
        """Medians of the recent steps, summed over ranks."""
        rates = [rate for view in self.ranks.values() if (rate := _rate(view)) is not None]
        return sum(rates) if rates else None

    @property
    def usual_seconds(self) -> float | None:
        """Median of the recent steps of the rank whose steps take longest."""
        return max(
            (statistics.median(v.seconds.last(RECENT)) for v in self.ranks.values() if v.seconds),
            default=None,
        )

    @property
    def wait_share(self) -> float | None:
        """Exposed communication: time blocked in `wait` over step time, mean of the ranks."""
        shares = [share for view in self.ranks.values() if (share := _waiting(view)) is not None]
        return statistics.fmean(shares) if shares else None

    @property
    def miss_share(self) -> float:
        """The share of the run's time that guard misses cost the rank that they cost most."""
        whole = (self.now_ns - self.began_ns) / 1e9
        return max((v.miss_seconds for v in self.ranks.values()), default=0.0) / max(whole, 1e-9)

    @property
    def stragglers(self) -> dict[int, float]:
        """Ranks that the others wait for in every step, with the share of their time it costs.

        Such a rank hardly waits itself, while the others do.
        """
        shares = {
            rank: share for rank, view in self.ranks.items() if (share := view.exposed) is not None
        }
        if len(shares) < 2:
            return {}
        typical = sorted(shares.values())[len(shares) // 2]
        return {rank: typical for rank, share in shares.items() if typical - share > NOTABLE}

    # --- what events do --------------------------------------------------------------------------

    def _say(self, rank: int, time_ns: int, kind: Kind, subject: str, text: str) -> None:
        step = self.ranks[rank].step + 1 if rank in self.ranks else self.step
        self.log.append(Entry(time_ns, rank, kind, subject, text, step, self._attempt(rank)))

    def _mark(self, rank: int, time_ns: int, kind: MarkKind, step: int) -> None:
        new = Mark(time_ns, kind, step, self._attempt(rank))
        recent = islice(reversed(self.marks), RECENT)
        if not any(
            (mark.kind, mark.step, mark.attempt) == (kind, step, new.attempt) for mark in recent
        ):
            self.marks.append(new)

    def _attempt(self, rank: int) -> int:
        """In which a rank is, or for the run itself the newest."""
        if rank in self.ranks:
            return self.ranks[rank].attempt
        return max((view.attempt for view in self.ranks.values()), default=0)

    def _attached(self, rank: int, time_ns: int, event: events.RankAttached) -> None:
        view = RankView(rank, event.pid, attempt=self.ranks[rank].attempt, began_ns=time_ns)
        view.last_ns = time_ns
        self.ranks[rank] = view
        self.world = max(self.world, event.world)
        again = f", attempt {view.attempt + 1}" if view.attempt else ""
        self._say(rank, time_ns, "info", "rank", f"attached ({event.python}{again})")

    def _clock(self, rank: int, time_ns: int, event: events.ClockAligned) -> None:
        view = self.ranks[rank]
        view.error_ns = event.error_ns

    def _compile_started(self, rank: int, time_ns: int, event: events.CompileStarted) -> None:
        view = self.ranks[rank]
        view.compiling, view.compiling_since = event.region, time_ns

    def _compile_finished(self, rank: int, time_ns: int, event: events.CompileFinished) -> None:
        view = self.ranks[rank]
        view.compiling = ""
        view.compile_seconds += event.seconds
        text = f"{event.region} in {event.seconds:.1f} s, cache {event.cache}"
        self._say(rank, time_ns, "info", "compiled", text)

    def _compile_phases(self, rank: int, time_ns: int, event: events.CompilePhases) -> None:
        longest = sorted(event.seconds.items(), key=lambda phase: -phase[1])
        text = ", ".join(f"{name} {took:.1f} s" for name, took in longest if took >= 0.05)
        if text:
            self._say(rank, time_ns, "info", "compiled", f"{event.region}: {text}")

    def _graph(self, rank: int, time_ns: int, event: events.GraphCaptured) -> None:
        self.graphs.setdefault(event.digest, event)

    def _root(self, rank: int, time_ns: int, event: events.RootFound) -> None:
        self.ranks[rank].trains = True

    def _agreed(self, rank: int, time_ns: int, event: events.ContractAgreed) -> None:
        self.ranks[rank].groups[event.root] = tuple(event.ranks)

    def _missed(self, rank: int, time_ns: int, event: events.GuardMissed) -> None:
        view = self.ranks[rank]
        view.misses += 1
        view.miss_seconds += event.seconds or 0.0
        self.misses.append(Miss(time_ns, rank, view.step + 1, event))
        self._mark(rank, time_ns, "miss", view.step + 1)
        text = f"{event.path} {event.old} -> {event.new}, {event.did}"
        self._say(rank, time_ns, "miss", event.guard or "no guard", text)

    def _capture_missed(self, rank: int, time_ns: int, event: events.CaptureMissed) -> None:
        self._say(rank, time_ns, "note", event.where, event.why)

    def _fallback(self, rank: int, time_ns: int, event: events.FallbackTaken) -> None:
        self._say(rank, time_ns, "note", event.root, f"{event.what}: {event.why}")

    def _note(self, rank: int, time_ns: int, event: events.NoteAdded) -> None:
        self._say(rank, time_ns, "note", event.subject, event.text)

    def _diagnostic(self, rank: int, time_ns: int, event: events.DiagnosticRaised) -> None:
        found = Diagnostic.from_wire(event.diagnostic)
        kind: Kind = "error" if found.severity == "error" else "warning"
        self._say(rank, time_ns, kind, found.code, found.message)

    def _memory(self, rank: int, time_ns: int, event: events.MemoryMeasured) -> None:
        view = self.ranks[rank]
        view.resident, view.peak, view.device = event.resident, event.peak, event.device

    def _step(self, rank: int, time_ns: int, event: events.StepFinished) -> None:
        view = self.ranks[rank]
        view.step, view.step_ns, view.before_ns = event.step, time_ns, view.step_ns
        if view.before_ns:  # the first step of an attempt compiles
            if _is_slow(event.seconds, view.seconds.last(RECENT)):
                self._mark(rank, time_ns, "slow", event.step)
            view.seconds.append(event.seconds)
            view.waits.append(event.wait)
            view.samples.append(event.samples)
        view.skipped += event.skipped
        view.loss = event.loss
        if event.loss is not None:
            view.losses.append(event.loss)
        if event.skipped:
            self._say(rank, time_ns, "note", "step", f"step {event.step} updated nothing")

    def _stage(self, rank: int, time_ns: int, event: events.StageEntered) -> None:
        known = any((s.root, s.step) == (event.root, event.step) for s in self.stages)
        if not known:
            self.stages.append(Stage(time_ns, event.root, event.step, event.formats))
            self._say(rank, time_ns, "info", event.root, f"computes in {event.formats}")

    def _scale(self, rank: int, time_ns: int, event: events.ScaleChanged) -> None:
        self.scales[event.root] = event.scale

    def _breached(self, rank: int, time_ns: int, event: events.SloBreached) -> None:
        before = self.levels.get(event.level)
        count = 1 if before is None else before.breaches + 1
        self.levels[event.level] = Level(
            event.level, event.limit, event.measured, False, count, event.step
        )
        self._mark(rank, time_ns, "slo", event.step)
        self._say(rank, time_ns, "slo", event.level, level_words(event))

    def _cleared(self, rank: int, time_ns: int, event: events.SloCleared) -> None:
        level = self.levels.get(event.level)
        if level is not None:
            level.holds, level.measured, level.since_step = True, event.measured, event.step
        self._say(rank, time_ns, "slo", event.level, level_words(event))

    def _script_ended(self, rank: int, time_ns: int, event: events.ScriptEnded) -> None:
        self.ranks[rank].ended = event
        kind: Kind = "error" if event.failed else "info"
        if event.failed:
            self._mark(rank, time_ns, "failure", event.steps)
        detail = f": {event.detail}" if event.detail and event.how != "exited" else ""
        self._say(rank, time_ns, kind, "script", f"{event.words} after step {event.steps}{detail}")

    def _dropped(self, rank: int, time_ns: int, event: events.EventsDropped) -> None:
        self._say(rank, time_ns, "warning", "events", f"{event.count} events were lost")


def _is_slow(seconds: float, recent: Sequence[float]) -> bool:
    """Whether a step takes `SLOW` times the median; nearly all are ruled out by the least one."""
    if len(recent) < 5 or seconds <= SLOW * min(recent):
        return False
    return seconds > SLOW * statistics.median_high(recent)


def _rate(view: RankView) -> float | None:
    if not view.seconds:
        return None
    seconds = statistics.median(view.seconds.last(RECENT))
    samples = statistics.median(view.samples.last(RECENT))
    return samples / seconds if seconds > 0 else None


def _waiting(view: RankView) -> float | None:
    whole = sum(view.seconds.last(RECENT))
    waits = sum(view.waits.last(RECENT))
    return waits / whole if whole > 0 else None


_HANDLERS: dict[type, Callable[[RunState, int, int, Any], None]] = {
    events.RankAttached: RunState._attached,
    events.RootFound: RunState._root,
    events.ClockAligned: RunState._clock,
    events.CompileStarted: RunState._compile_started,
    events.CompileFinished: RunState._compile_finished,
    events.CompilePhases: RunState._compile_phases,
    events.GraphCaptured: RunState._graph,
    events.ContractAgreed: RunState._agreed,
    events.GuardMissed: RunState._missed,
    events.CaptureMissed: RunState._capture_missed,
    events.FallbackTaken: RunState._fallback,
    events.NoteAdded: RunState._note,
    events.DiagnosticRaised: RunState._diagnostic,
    events.MemoryMeasured: RunState._memory,
    events.StepFinished: RunState._step,
    events.StageEntered: RunState._stage,
    events.ScaleChanged: RunState._scale,
    events.SloBreached: RunState._breached,
    events.SloCleared: RunState._cleared,
    events.ScriptEnded: RunState._script_ended,
    events.EventsDropped: RunState._dropped,
}
