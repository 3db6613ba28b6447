"""The fold: what a run looks like after its events, whatever their order of arrival."""

from __future__ import annotations

from typing import Any

from sgplan.interpreter import events

from .build import BEGIN, SECOND, after, attached, miss, step


def test_a_rank_goes_through_its_phases() -> None:
    said: list[tuple[int, float, Any]] = [(0, 0.0, attached(world=1))]
    assert after(*said).phase == "starting"
    said.append((0, 1.0, events.CompileStarted("GPT.forward")))
    assert after(*said).phase == "compiling"
    said.append((0, 2.0, events.CompileFinished("GPT.forward", 1.0, "miss", "")))
    said.append((0, 3.0, step(1)))
    assert after(*said).phase == "training"
    said.append((0, 4.0, events.ScriptEnded("raised", "ValueError", 1, 0)))
    state = after(*said)
    assert state.phase == "failed"
    assert [entry.kind for entry in state.log] == ["info", "info", "error"]


def test_the_worst_rank_is_the_phase_of_the_run() -> None:
    state = after(
        (0, 0.0, attached(0)),
        (1, 0.0, attached(1)),
        (0, 1.0, step(1)),
        (1, 1.0, events.ScriptEnded("refused", "", 0, 0)),
    )
    assert state.phase == "refused"
    assert state.step == 0


def test_times_are_moved_onto_rank_0s_clock() -> None:
    state = after((1, 0.0, attached(1)), (1, 0.0, events.ClockAligned(5 * SECOND, 40_000)),
                  (1, 1.0, step(1)))  # fmt: skip
    assert state.ranks[1].step_ns == BEGIN + 6 * SECOND
    assert state.ranks[1].error_ns == 40_000


def test_a_restarted_rank_begins_anew_and_the_log_stays() -> None:
    state = after((0, 0.0, attached(world=1)), (0, 1.0, step(1)), (0, 2.0, attached(world=1)))
    assert state.ranks[0].step == 0
    assert len(state.log) == 2


def test_guard_misses_keep_their_step() -> None:
    state = after((0, 0.0, attached()), (0, 1.0, step(1)), (0, 2.0, miss()))
    (found,) = state.misses
    assert (found.step, found.event.new, state.ranks[0].misses) == (2, "17", 1)


def test_a_level_is_breached_and_holds_again() -> None:
    state = after(
        (0, 0.0, attached(world=1)),
        (-1, 1.0, events.SloBreached("step_p99", 0.05, 0.2, 7)),
        (-1, 2.0, events.SloCleared("step_p99", 0.05, 0.04, 9)),
        (-1, 3.0, events.SloBreached("step_p99", 0.05, 0.3, 12)),
    )
    level = state.levels["step_p99"]
    assert (level.holds, level.breaches, level.since_step) == (False, 2, 12)
    assert set(state.ranks) == {0}


def test_a_stage_that_every_rank_enters_is_one() -> None:
    stage = events.StageEntered("model", 11, "bf16 (precision.late)")
    state = after((0, 0.0, attached(0)), (1, 0.0, attached(1)), (0, 1.0, stage), (1, 1.0, stage))
    assert [found.step for found in state.stages] == [11]


def test_every_event_kind_is_taken() -> None:
    """A kind that the screens do not show is no fault."""
    state = after((0, 0.0, attached(world=1)), (0, 1.0, events.ProgramWritten("program-0.msgpack")))
    assert state.ranks[0].last_ns == BEGIN + SECOND
