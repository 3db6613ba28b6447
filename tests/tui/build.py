"""Records of a small run, so that a test shows only what it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack

from sgplan.interpreter import events
from sgplan.interpreter.counter import Counter, Position
from sgplan.interpreter.record import Record, header
from sgplan.reader import Heard
from sgplan.runfolder import RunFolder
from sgplan.tui.state import RunState

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND


def attached(rank: int = 0, world: int = 2) -> events.RankAttached:
    return events.RankAttached(rank, world, 100 + rank, "python", "2.13", "apply")


def step(number: int, seconds: float = 0.01, **given: Any) -> events.StepFinished:
    fields: dict[str, Any] = {"wait": 0.001, "own": 0.0, "samples": 8, "loss": 1.0 / number}
    fields |= {"skipped": False, "in_graph": 0, "by_hooks": 1} | given
    return events.StepFinished(number, seconds, **fields)


def miss(old: str = "32", new: str = "17", did: str = "recompiled") -> events.GuardMissed:
    return events.GuardMissed(
        "guard.batch", "input[0].shape[0]", old, new, "train.py:57", did, 1.5,
        "`guard.batch` allows 32", "allow = [32, 17]",
    )  # fmt: skip


def after(*said: tuple[int, float, Any]) -> RunState:
    """The state after records: rank, seconds since the beginning, event."""
    state = RunState()
    for heard in heard_of(*said):
        state.take(heard)
    return state


def heard_of(*said: tuple[int, float, Any], attempt: int = 0) -> list[Heard]:
    """Records as a reader gives them: rank, seconds since the beginning, event."""
    records = [(rank, BEGIN + round(s * SECOND), event) for rank, s, event in said]
    return [Heard(rank, at, Record(at, event, attempt)) for rank, at, event in records]


def at(place: str, step: int = 3, since: float = 0.0, pid: int = 1) -> Position:
    return Position(place, BEGIN + round(since * SECOND), step, pid)


def folder(path: Path, *said: tuple[int, float, Any]) -> RunFolder:
    """A run folder with these records in the event files of their ranks; -1 is the run."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "plan.msgpack").write_bytes(b"")
    packed: dict[int, list[bytes]] = {}
    for rank, seconds, event in said:
        name = events.KIND_OF[type(event)]
        values = [getattr(event, field) for field in type(event).__dataclass_fields__]
        record = [name, BEGIN + round(seconds * SECOND), *values]
        packed.setdefault(rank, [_packed(header(rank, 2, "apply"))]).append(_packed(record))
    for rank, records in packed.items():
        file = path / f"events-{'run' if rank < 0 else rank}.msgpack"
        file.write_bytes(b"".join(records))
    return RunFolder(path)


def _packed(value: Any) -> bytes:
    data = msgpack.packb(value)
    assert data is not None
    return data


def counter(run: RunFolder, rank: int, *places: str) -> Counter:
    """The counter of a rank, which has entered these places."""
    found = Counter(run.path / f"counter-{rank}.bin")
    for place in places:
        found.enter(found.place(place))
    return found
