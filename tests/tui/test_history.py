"""The past of a run: any moment of it, without its records in memory."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from sgplan.interpreter import events
from sgplan.reader import Heard, Reader
from sgplan.tui.history import History
from sgplan.tui.player import Player
from sgplan.tui.source import Source
from sgplan.tui.state import RunState

from .build import BEGIN, SECOND, attached, folder, miss, step

STEPS = 60


def run_of(path: Path) -> Path:
    said = [(rank, 0.1 * rank, attached(rank)) for rank in (0, 1)]
    said += [(1, 0.2, events.ClockAligned(SECOND // 4, 10))]
    said += [(r, float(n), step(n)) for n in range(1, STEPS + 1) for r in (0, 1)]
    said += [(1, 30.5, miss())]
    return folder(path, *sorted(said, key=lambda each: each[1])).path


def gone_through(path: Path, every: int, room: int = 10**9) -> History:
    history, reader, state = History(path, every, room), Reader(path), RunState()
    for heard in reader.records():
        state.take(heard)
        history.said(state, reader)
    return history


def begun_anew(path: Path, time_ns: int) -> RunState:
    state = RunState()
    for heard in Reader(path).records():
        if heard.time_ns <= time_ns:
            state.take(heard)
    return state


def plain(value: Any) -> Any:
    """Everything that an object holds, down to what can be compared."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | deque):
        return [plain(each) for each in value]
    return plain(vars(value)) if hasattr(value, "__dict__") else value


@pytest.mark.parametrize("every", [1, 7, 10_000])
def test_a_moment_is_what_was_said_until_then(tmp_path: Path, every: int) -> None:
    path = run_of(tmp_path)
    history = gone_through(path, every)
    for second in (0, 1, 10, 10.25, 30.75, 59, 61):
        time_ns = BEGIN + round(second * SECOND)
        found = history.at(time_ns)
        assert found.time_ns == time_ns
        assert plain(found.state) == plain(begun_anew(path, time_ns)), second


def test_what_is_kept_has_a_bound_and_every_moment_is_found(tmp_path: Path) -> None:
    path = run_of(tmp_path)
    room = 30_000
    history = gone_through(path, 1, room)
    assert sum(len(kept.packed) for kept in history._kept) <= room
    assert 2 < len(history._kept) < STEPS
    for number in (1, 17, 44, STEPS):
        assert history.at(BEGIN + number * SECOND).state.ranks[0].step == number


def test_a_moment_moves_on(tmp_path: Path) -> None:
    history = gone_through(run_of(tmp_path), 5)
    moment = history.at(BEGIN + 10 * SECOND)

    def is_step(heard: Heard) -> bool:
        return heard.rank == 0 and isinstance(heard.record.event, events.StepFinished)

    assert moment.to_next(is_step)
    assert moment.state.ranks[0].step == 11
    moment.to(BEGIN + 20 * SECOND)
    assert moment.state.ranks[0].step == 20
    moment.to(BEGIN + 99 * SECOND)
    assert moment.state.ranks[1].step == STEPS
    assert not moment.to_next(is_step)


def test_a_moment_of_a_run_that_grows_sees_what_comes(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)), (0, 1.0, step(1)), (0, 2.0, step(2)))
    path = run.path / "events-0.msgpack"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    moment = History(run.path).at(BEGIN + SECOND)
    assert not moment.to_next(lambda heard: True)
    path.write_bytes(whole)
    assert moment.to_next(lambda heard: True)
    assert moment.state.step == 2


def test_in_the_past_a_compile_goes_on_since_its_start_until_then(tmp_path: Path) -> None:
    run = folder(
        tmp_path,
        (0, 0.0, attached(0)),
        (0, 1.0, events.CompileStarted("model")),
        (0, 3.0, events.NoteAdded("a", "b")),
        (0, 9.0, events.CompileFinished("model", 8.0, "miss", 2, "")),
    )
    player = Player(Source(run), now=lambda: BEGIN + 1000 * SECOND)
    player.tick()
    player.go(BEGIN + 4 * SECOND)
    assert player.view().where[0].doing == "compile model"
    assert player.view().where[0].since == 3.0
