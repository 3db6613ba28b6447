"""What a rank tells of where it is: its counter always, the spans of a step now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sgplan.interpreter import counter
from sgplan.interpreter.counter import ELSEWHERE, CounterFile
from sgplan.interpreter.events import NoteAdded, StepTraced
from sgplan.interpreter.track import NoTrack, Tracked, every

from .world import rank_under


def tracked(path: Path) -> tuple[Tracked, CounterFile, list[StepTraced]]:
    told: list[StepTraced] = []

    def emit(event: type, *fields: Any) -> None:
        told.append(event(*fields))

    return Tracked(path, emit), CounterFile(path), told


def place_of(file: CounterFile) -> str:
    position = file.position()
    assert position is not None
    return position.place


def test_a_step_is_told_with_what_lies_in_what(tmp_path: Path) -> None:
    track, file, told = tracked(tmp_path / "c")
    backward, wait = track.place("backward"), track.place("wait b0")
    track.enter(backward)
    track.enter(wait)
    assert place_of(file) == "wait b0"
    track.leave(wait)
    assert place_of(file) == "backward"
    track.leave(backward)
    track.span("reduce b0", 1)
    track.step_ended(1)
    assert place_of(file) == ELSEWHERE
    (step,) = told
    assert [name for name, _, _ in step.spans] == ["wait b0", "backward", "reduce b0"]
    (_, inner_began, inner_ended), (_, outer_began, outer_ended), _ = step.spans
    assert outer_began <= inner_began <= inner_ended <= outer_ended


def test_what_an_exception_left_open_is_closed_with_what_is_around_it(tmp_path: Path) -> None:
    track, file, _ = tracked(tmp_path / "c")
    backward = track.place("backward")
    track.enter(backward)
    track.enter(track.place("reduce.start b0"))
    track.leave(backward)
    assert place_of(file) == ELSEWHERE
    track.leave(backward)  # nobody is anywhere
    assert place_of(file) == ELSEWHERE


def test_a_call_that_raised_is_over_with_its_step_at_the_latest(tmp_path: Path) -> None:
    track, file, _ = tracked(tmp_path / "c")
    forward = track.place("forward model")
    track.enter(forward)  # raised, caught by the script
    track.enter(forward)
    track.leave(forward)
    assert place_of(file) == "forward model"
    track.step_ended(1)
    assert place_of(file) == ELSEWHERE


def test_only_one_step_in_a_while_is_told_and_a_long_one_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter, "MOST", 3)
    tracking, file, told = tracked(tmp_path / "c")
    place = tracking.place("wait b0")
    for step in range(1, 10):
        assert tracking.full == (step in (1, 2, 4, 8))  # their pace is not known yet
        for _ in range(5):
            tracking.enter(place)
            tracking.leave(place)
        tracking.step_ended(step)
    assert [(each.step, len(each.spans)) for each in told] == [(1, 3), (2, 3), (4, 3), (8, 3)]
    position = file.position()
    assert position is not None
    assert position.step == 9


def test_a_disk_that_is_full_costs_the_counter_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    rank, kept = rank_under(tmp_path)
    assert isinstance(rank.track, NoTrack)
    rank.track.enter(rank.track.place("backward"))
    (note,) = kept.of(NoteAdded)
    assert "No space left on device" in note.text
    assert list(tmp_path.glob("counter-*")) == []


@pytest.mark.parametrize("paces", [(0.0101, 0.0098), (0.0079, 0.0077), (0.3, 0.34)])
def test_ranks_that_run_a_little_apart_tell_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paces: tuple[float, float]
) -> None:
    told: list[set[int]] = []
    for rank, pace in enumerate(paces):
        clock = [100.0 + rank / 3]
        monkeypatch.setattr("time.monotonic", lambda clock=clock: clock[0])
        tracking, _, steps = tracked(tmp_path / str(rank))
        for step in range(1, 2001):
            clock[0] += 5.0 if step in (1, 1000) else pace  # a compile, a checkpoint
            tracking.step_ended(step)
        told.append({each.step for each in steps})
    fewer, more = sorted(told, key=len)
    assert len(fewer - more) <= 3  # next to the checkpoint
    seconds = 2000 * min(paces)
    assert seconds / 3 <= len(fewer) <= len(more) <= seconds + 15


def test_a_power_of_two_steps_take_a_second() -> None:
    assert [every(*pace) for pace in ((1.0, 100), (1.0, 1), (9.0, 1), (1.0, 64))] == [128, 1, 1, 64]
