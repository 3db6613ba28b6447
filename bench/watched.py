"""A run folder of many ranks as their recorders would fill it, written by one process.

    python bench/watched.py FOLDER --ranks 64                    # goes on until it is ended
    python bench/watched.py FOLDER --ranks 64 --steps 7200       # one that has ended, at once
    python bench/watched.py FOLDER --ranks 512 --steps 3 --fails

Events go through sgplan's own recorders, and program counters are its own, so the format is right
by construction. What the ranks say is made up: steps of 30 spans, memory, and now and then a guard
miss with a long text.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sgplan.interpreter import events
from sgplan.interpreter.counter import Counter
from sgplan.interpreter.record import Recorder, header

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "tui" / "runs" / "healthy"
PLACES = ("forward model", "backward", *(f"reduce.start b{n}" for n in range(12)), "update")
PLACES += tuple(f"wait b{n}" for n in range(12))
SPANS = 30
LONG = "the value is none of those that the plan allows, and " * 6

Said = tuple[int, type, tuple[Any, ...]]
"""Wall-clock nanoseconds, event, fields."""


class Rank:
    """What one rank says, step by step."""

    def __init__(self, number: int, world: int, rate: float, misses: float) -> None:
        self.number = number
        self._world = world
        self._period = 1.0 / rate
        self._misses = misses
        self._rng = random.Random(number)
        self._told = 0

    def attach(self, now: int) -> Iterator[Said]:
        who = (self.number, self._world, os.getpid(), "python", "2.13.0", "apply")
        yield now, events.RankAttached, who
        yield now, events.ClockAligned, (0, 20_000 + self.number)

    def step(self, step: int, now: int) -> Iterator[Said]:
        """What is said of a step that ends now."""
        seconds = self._period * self._rng.uniform(0.95, 1.05)
        wait = 0.1 * seconds * self._rng.random()
        loss = 5.0 / (1 + 0.01 * step) + 0.1 * self._rng.random()
        yield now, events.StepFinished, (step, seconds, wait, 1e-4, 32, loss, False, 0, 13)
        if now - self._told >= 1_000_000_000:
            self._told = now
            begin = now - round(1e9 * seconds)
            each = round(1e9 * seconds / SPANS)
            spans = [
                (PLACES[n % len(PLACES)], begin + n * each, begin + (n + 1) * each)
                for n in range(SPANS)
            ]
            yield now, events.StepTraced, (step, spans)
            resident = 2_000_000_000 + self._rng.randrange(1 << 24)
            yield now, events.MemoryMeasured, (resident, 2_100_000_000, 0)
        if self._rng.random() < self._misses:
            size = str(self._rng.randrange(1, 100))
            seen = ("guard.batch", "input[0].shape[0]", "32", size, "train.py:57")
            did = ("recompiled", 1.5, LONG, f"allow = [32, {size}]")
            yield now, events.GuardMissed, (*seen, *did)

    def end(self, step: int, now: int) -> Iterator[Said]:
        why = f"RuntimeError: rank {self.number} cannot go on, for {LONG}"
        yield now, events.ScriptEnded, ("raised", why, step, 2_100_000_000)


def prepare(folder: Path) -> None:
    """The plan and one program of a recorded run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("plan.msgpack", "program-0.msgpack"):
        shutil.copyfile(RECORDED / name, folder / name)


def follow(folder: Path, ranks: list[Rank], rate: float) -> None:
    """Write in real time until this process is ended."""
    recorders = [_recorder(folder, rank.number, len(ranks)) for rank in ranks]
    counters = [_counter(folder, rank.number) for rank in ranks]
    for rank, recorder in zip(ranks, recorders, strict=True):
        _emit(recorder, rank.attach(time.time_ns()))
    step, due = 0, time.monotonic()
    while True:
        step, due = step + 1, due + 1.0 / rate
        for rank, recorder, counter in zip(ranks, recorders, counters, strict=True):
            _walk(counter, step)
            _emit(recorder, rank.step(step, time.time_ns()))
        time.sleep(max(due - time.monotonic(), 0.0))


def record(folder: Path, ranks: list[Rank], rate: float, steps: int, fails: bool) -> None:
    """Write a run that has ended, as fast as it goes."""
    began = time.time_ns() - round(1e9 * (steps + 2) / rate)
    for rank in ranks:
        recorder = _recorder(folder, rank.number, len(ranks))
        _emit(recorder, rank.attach(began))
        for step in range(1, steps + 1):
            _emit(recorder, rank.step(step, began + round(1e9 * step / rate)))
        if fails:
            _emit(recorder, rank.end(steps, began + round(1e9 * (steps + 1) / rate)))
        if not recorder.close(60.0):
            raise TimeoutError(f"the events of rank {rank.number} could not be written")
        _walk(_counter(folder, rank.number), steps)


def _recorder(folder: Path, rank: int, world: int) -> Recorder:
    path = folder / f"events-{rank}.msgpack"
    return Recorder(path, header(rank, world, "apply"), limit=1 << 24)


def _emit(recorder: Recorder, said: Iterable[Said]) -> None:
    for time_ns, event, fields in said:
        recorder.emit(event, *fields, _now=lambda time_ns=time_ns: time_ns)


def _counter(folder: Path, rank: int) -> Counter:
    return Counter(folder / f"counter-{rank}.bin")


def _walk(counter: Counter, step: int) -> None:
    """A few places of a step; the last one is not left before the next step."""
    counter.stepped(step)
    for name in PLACES[step % len(PLACES) :][:3]:
        place = counter.place(name)
        counter.enter(place)
        counter.leave(place)
    counter.enter(counter.place("backward"))
    counter.publish()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rate", type=float, default=10.0, help="steps of a rank in a second")
    parser.add_argument("--misses", type=float, default=1e-3, help="guard misses of a step")
    parser.add_argument("--steps", type=int, help="a run that has ended, of so many")
    parser.add_argument("--fails", action="store_true", help="every rank raises at its end")
    args = parser.parse_args()
    ranks = [Rank(n, args.ranks, args.rate, args.misses) for n in range(args.ranks)]
    prepare(args.folder)
    if args.steps is None:
        follow(args.folder, ranks, args.rate)
    else:
        record(args.folder, ranks, args.rate, args.steps, args.fails)


if __name__ == "__main__":
    main()
