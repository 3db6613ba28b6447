"""Runs every way of one model and turns what came back into figures.

First each way that compiles is started with an empty cache (cold). Then, several times over, all
ways are started with the cache they left (warm) and let through their gates in turn, round after
round: a process may be slower than its like for as long as it lives.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gated
from stats import Rounds
from ways import Way

from sgplan.interpreter.events import CompileFinished, GraphCaptured, StepFinished
from sgplan.interpreter.record import read_events

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how often.

    Attributes:
        model: name of the workload.
        ranks: processes of a job.
        batch: samples per rank and step.
        steps: steps of a round.
        rounds: rounds of each start.
        cold_starts: starts with an empty cache of each way that compiles; the best counts.
        starts: starts of each way with its cache as it is then; of first calls the best counts.
        folder: working folder; caches, gates and run folders go there.
    """

    model: str
    ranks: int
    batch: int
    steps: int
    rounds: int
    cold_starts: int
    starts: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one way.

    Attributes:
        steps: wall seconds of the steps of rank 0, by start and round.
        cpu: CPU seconds of a step of rank 0, median over all rounds.
        peak_rss: bytes, the largest of any rank, by start.
        cold, warm: seconds from a rank's start to the end of its first step, the slowest rank;
            `cold` is None when another way fills the same cache, or nothing is compiled.
        own: sgplan's own share of a step, median over starts, None by hand.
        compiled_again: regions that a second rank or a warm run compiled although a cache had them.
    """

    steps: Sequence[Rounds]
    cpu: float
    peak_rss: Sequence[int]
    cold: float | None
    warm: float
    own: float | None
    compiled_again: tuple[str, ...]


@dataclass(slots=True)
class _Cold:
    seconds: float
    compiled_again: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Start:
    """What one warm start of a way left: the timings of its ranks, and sgplan's own figures."""

    timings: list[dict[str, Any]]
    own: float | None
    compiled_again: tuple[str, ...]


def measure(settings: Settings, ways: Sequence[Way], say: Say) -> dict[str, Figures]:
    """Figures of every way, by name."""
    shutil.rmtree(settings.folder, ignore_errors=True)
    cold = _cold_starts(settings, ways, say)
    starts = [_warm_start(settings, ways, number, say) for number in range(settings.starts)]
    return {
        way.name: _figures(cold.get(way.name), [start[way.name] for start in starts])
        for way in ways
    }


def _warm_start(
    settings: Settings, ways: Sequence[Way], number: int, say: Say
) -> dict[str, _Start]:
    """All ways started once and let through their gates in turn."""
    which = f"{settings.model}: start {number + 1} of {settings.starts}"
    cached = number > 0 or settings.cold_starts > 0
    jobs: dict[str, gated.GatedJob] = {}
    try:
        for way in ways:
            say(f"{which}, {way.name}")
            jobs[way.name] = _start(settings, way, f"warm{number}")
            jobs[way.name].wait_parked()
        for turn in range(settings.rounds):
            say(f"{which}, round {turn + 1} of {settings.rounds}")
            order = list(jobs.values())
            for job in order if turn % 2 == 0 else reversed(order):
                job.go()
        return {way.name: _ended(way, jobs[way.name], cached=cached) for way in ways}
    finally:
        for job in jobs.values():
            job.kill()


def _ended(way: Way, job: gated.GatedJob, *, cached: bool) -> _Start:
    timings = job.finish()
    if way.plan is None:
        return _Start(timings, None, ())
    return _Start(timings, _own_share(job), _misses(job) if cached else ())


def _cold_starts(settings: Settings, ways: Sequence[Way], say: Say) -> dict[str, _Cold]:
    found: dict[str, _Cold] = {}
    first = {way.cache: way for way in reversed(ways) if way.cache is not None}
    for number in range(settings.cold_starts):
        for way in (way for way in ways if way in first.values()):
            say(f"{settings.model}: cold start of {way.name}")
            shutil.rmtree(_cache(settings, way), ignore_errors=True)
            job = _start(settings, way, f"cold{number}")
            this = _Cold(_only_start(job), _compiled_twice(way, job))
            best = found.setdefault(way.name, this)
            found[way.name] = _Cold(
                min(best.seconds, this.seconds), (*best.compiled_again, *this.compiled_again)
            )
    return found


def _only_start(job: gated.GatedJob) -> float:
    """The first call of a job that is ended after it."""
    try:
        job.wait_parked()
        return _first_call(job.finish())
    finally:
        job.kill()


def _cache(settings: Settings, way: Way) -> Path:
    return settings.folder / "cache" / (way.cache or "nothing")


def _start(settings: Settings, way: Way, temperature: str) -> gated.GatedJob:
    slug = "".join(c if c.isalnum() else "-" for c in way.name)
    args = [*way.args, "--model", settings.model]
    args += ["--batch", str(settings.batch), "--steps", str(settings.steps)]
    return gated.start(
        way.name,
        settings.folder / temperature / slug,
        args,
        plan=way.plan,
        ranks=settings.ranks,
        cache=_cache(settings, way),
    )


def _figures(cold: _Cold | None, starts: Sequence[_Start]) -> Figures:
    shares = [start.own for start in starts if start.own is not None]
    again = [region for start in starts for region in start.compiled_again]
    return Figures(
        steps=[start.timings[0]["steps"] for start in starts],
        cpu=median(seconds for start in starts for seconds in start.timings[0]["cpu"]),
        peak_rss=[max(rank["peak_rss"] for rank in start.timings) for start in starts],
        cold=None if cold is None else cold.seconds,
        warm=min(_first_call(start.timings) for start in starts),
        own=median(shares) if shares else None,
        compiled_again=(*(() if cold is None else cold.compiled_again), *again),
    )


def _first_call(timings: list[dict[str, Any]]) -> float:
    return max(rank["first_call"] for rank in timings)


def _events(job: gated.GatedJob, rank: int) -> list[Any]:
    return [record.event for record in read_events(job.run / f"events-{rank}.msgpack")]


def _own_share(job: gated.GatedJob) -> float:
    """Median over steps of sgplan's own seconds over the step's, the first steps left out."""
    steps = [event for event in _events(job, 0) if isinstance(event, StepFinished)]
    measured = [step for step in steps if step.step > len(steps) // 4]
    return median(step.own / step.seconds for step in measured)


def _lowered(job: gated.GatedJob, rank: int) -> Counter[str]:
    """Graphs that a rank lowered, by region."""
    counts: Counter[str] = Counter()
    for event in _events(job, rank):
        if isinstance(event, CompileFinished):
            counts[event.region] += event.lowered
    return +counts


def _misses(job: gated.GatedJob) -> tuple[str, ...]:
    return tuple(
        f"warm, rank {rank}: {region}"
        for rank in range(job.ranks)
        for region in _lowered(job, rank)
    )


def _compiled_twice(way: Way, job: gated.GatedJob) -> tuple[str, ...]:
    """Regions of which the ranks together lowered more graphs in a cold run than they have."""
    if way.plan is None:
        return ()
    captured = Counter(e.region for e in _events(job, 0) if isinstance(e, GraphCaptured))
    lowered: Counter[str] = Counter()
    for rank in range(job.ranks):
        lowered += _lowered(job, rank)
    return tuple(
        f"cold: {count} graphs of {region}, which has {captured[region]}"
        for region, count in lowered.items()
        if count > captured[region]
    )
