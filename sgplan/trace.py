"""A run as a trace that Perfetto opens: steps, instructions, collectives linked across ranks.

The Trace Event Format (Chrome), as one JSON object. All times are on rank 0's clock; how far a
rank's may be off stands in its name. Pure: records in, events out.

Slices of one track either lie in each other or do not touch: Perfetto drops others. So reductions
that are in flight together have tracks of their own, and a step begins where the one before ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

from sgplan.interpreter import events
from sgplan.interpreter.tracked_places import in_flight
from sgplan.reader import Heard

STEPS, PROGRAM, COMPILES, COLLECTIVES = range(4)
_TRACKS = {STEPS: "steps", PROGRAM: "program", COMPILES: "compiles", COLLECTIVES: "collectives"}
"""The last of them goes on: a reduction beside others is on `COLLECTIVES` + their number."""
_IN_FLIGHT = in_flight("")


def trace_of(records: Iterable[Heard]) -> dict[str, Any]:
    """The trace of a run.

    Args:
        records: in order within a rank; -1 is the run itself.
    """
    writer = _Writer()
    for heard in records:
        writer.take(heard)
    return {
        "traceEvents": [*writer.names(), *writer.events, *writer.flows()],
        "displayTimeUnit": "ms",
        "otherData": {"made by": "sgplan trace"},
    }


class _Writer:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._errors: dict[int, int] = {}  # of clocks, in nanoseconds
        self._ranks: dict[int, None] = {}
        self._ended: dict[tuple[int, int], float] = {}  # by rank and track: its last slice
        self._beside: dict[int, int] = {}  # by rank: tracks of collectives
        # By attempt, step, place, and how often it came in the step: rank, track and begin.
        self._collectives: dict[tuple[int, int, str, int], list[tuple[int, int, float]]] = {}

    def take(self, heard: Heard) -> None:
        rank, time_ns, record = heard
        event = record.event
        if rank >= 0:
            self._ranks.setdefault(rank)
        at = time_ns / 1e3
        match event:
            case events.ClockAligned():
                self._errors[rank] = event.error_ns
            case events.StepFinished():
                loss = event.loss if event.loss is None or isfinite(event.loss) else str(event.loss)
                arguments = {"loss": loss, "wait": event.wait, "skipped": event.skipped}
                arguments |= {"reduced in graph": event.in_graph, "by hooks": event.by_hooks}
                self._behind(rank, STEPS, f"step {event.step}", event.seconds, at, arguments)
                if event.loss is not None and isfinite(event.loss):  # JSON has no other numbers
                    self._figure(rank, at, "loss", {"loss": event.loss})
            case events.StepTraced():
                self._steps(rank, record.attempt, event, time_ns - record.time_ns)
            case events.CompileFinished():
                arguments = {"cache": event.cache, "lowered": event.lowered, "why": event.why}
                self._behind(rank, COMPILES, event.region, event.seconds, at, arguments)
            case events.MemoryMeasured():
                found = {"resident MiB": event.resident / 2**20, "device MiB": event.device / 2**20}
                self._figure(rank, at, "memory", found)
            case events.GuardMissed():
                self._mark(rank, at, f"guard miss: {event.path} {event.old} -> {event.new}")
            case events.SloBreached() | events.SloCleared():
                verb = "breached" if isinstance(event, events.SloBreached) else "holds again"
                self._mark(max(rank, 0), at, f"slo {event.level} {verb}", "g")
            case events.ScriptEnded():
                self._mark(rank, at, f"script {event.words}")
            case _:
                pass

    def _steps(self, rank: int, attempt: int, event: events.StepTraced, clock_ns: int) -> None:
        """Spans are in the rank's own time, to which `clock_ns` is to be added."""
        times: Counter[str] = Counter()
        flying: list[float] = []  # of each track of collectives: the end of its last slice
        for place, began, ended in sorted(event.spans, key=lambda span: span[1]):
            begin, end = (began + clock_ns) / 1e3, (ended + clock_ns) / 1e3
            track = PROGRAM
            if place.startswith(_IN_FLIGHT):
                lane = next((n for n, free in enumerate(flying) if free <= begin), len(flying))
                flying[lane : lane + 1] = [end]
                track = COLLECTIVES + lane
                key = (attempt, event.step, place, times[place])
                times[place] += 1
                self._collectives.setdefault(key, []).append((rank, track, begin))
            self._span(rank, track, place, begin, end, {"step": event.step})
        self._beside[rank] = max(self._beside.get(rank, 1), len(flying))

    def _behind(
        self,
        rank: int,
        track: int,
        name: str,
        seconds: float,
        end: float,
        arguments: dict[str, Any],
    ) -> None:
        """A slice that was told when it ended: what was told before it ended before it began."""
        begin = max(end - 1e6 * seconds, self._ended.get((rank, track), 0.0))
        self._ended[rank, track] = end
        self._span(rank, track, name, begin, end, arguments)

    def _span(
        self, rank: int, track: int, name: str, begin: float, end: float, arguments: dict[str, Any]
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "pid": rank,
                "tid": track,
                "name": name,
                "ts": begin,
                "dur": max(end - begin, 0.0),
                "args": arguments,
            }
        )

    def _figure(self, rank: int, at: float, name: str, values: dict[str, float]) -> None:
        self.events.append({"ph": "C", "pid": rank, "name": name, "ts": at, "args": values})

    def _mark(self, rank: int, at: float, name: str, scope: str = "p") -> None:
        self.events.append(
            {"ph": "i", "pid": rank, "tid": STEPS, "name": name, "ts": at, "s": scope}
        )

    def names(self) -> Iterator[dict[str, Any]]:
        for rank in sorted(self._ranks):
            error = self._errors.get(rank)
            off = "" if error is None else f" (clock within {error / 1e3:.0f} us)"
            yield _named(rank, "process_name", {"name": f"rank {rank}{off}"})
            yield _named(rank, "process_sort_index", {"sort_index": rank})
            for track, name in _TRACKS.items():
                yield _named(rank, "thread_name", {"name": name}, track)
            for more in range(1, self._beside.get(rank, 1)):
                yield _named(rank, "thread_name", {"name": "collectives"}, COLLECTIVES + more)

    def flows(self) -> Iterator[dict[str, Any]]:
        """One arrow for each collective, from the rank that came first to all others."""
        for number, (key, found) in enumerate(sorted(self._collectives.items()), 1):
            _, step, place, _ = key
            ordered = sorted(found, key=lambda each: each[2])
            for index, (rank, track, begin) in enumerate(ordered if len(ordered) > 1 else []):
                last = index == len(ordered) - 1
                yield {
                    "ph": "s" if index == 0 else "f" if last else "t",
                    "id": number,
                    "pid": rank,
                    "tid": track,
                    "cat": "collective",
                    "name": f"{place}, step {step}",
                    "ts": begin,
                    **({"bp": "e"} if last else {}),
                }


def _named(rank: int, what: str, value: dict[str, Any], track: int = 0) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": track, "name": what, "args": value}
