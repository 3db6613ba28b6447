"""The fold: what a run looks like after its events, whatever their order of arrival."""

from __future__ import annotations

from typing import Any

import pytest

from sgplan.interpreter import events
from sgplan.tui.rows import View, event_rows

from .build import BEGIN, SECOND, after, attached, heard_of, miss, step


def test_a_rank_goes_through_its_phases() -> None:
    said: list[tuple[int, float, Any]] = [(0, 0.0, attached(world=1))]
    assert after(*said).phase == "starting"
    said.append((0, 1.0, events.CompileStarted("GPT.forward")))
    assert after(*said).phase == "compiling"
    said.append((0, 2.0, events.CompileFinished("GPT.forward", 1.0, "miss", 2, "")))
    said.append((0, 3.0, step(1)))
    assert after(*said).phase == "training"
    said.append((0, 4.0, events.ScriptEnded("raised", "ValueError", 1, 0)))
    state = after(*said)
    assert state.phase == "failed"
    assert [entry.kind for entry in state.log] == ["info", "info", "error"]


@pytest.mark.parametrize(
    ("how", "detail", "phase", "said"),
    [
        ("returned", "", "ended", "returned after step 1"),
        ("exited", "status 3", "failed", "exited with status 3 after step 1"),
        ("exited", "a status that is not known", "ended", "exited with a status that is not known"),
        ("raised", "ValueError", "failed", "raised after step 1: ValueError"),
        ("refused", "SG0401: no", "refused", "refused after step 1: SG0401: no"),
    ],
)
def test_how_a_script_ended_is_told(how: str, detail: str, phase: str, said: str) -> None:
    state = after((0, 0.0, attached(world=1)), (0, 1.0, events.ScriptEnded(how, detail, 1, 0)))
    assert state.phase == phase
    assert state.log[-1].text.startswith(said)


def test_the_worst_rank_is_the_phase_of_the_run() -> None:
    state = after(
        (0, 0.0, attached(0)),
        (1, 0.0, attached(1)),
        (0, 1.0, step(1)),
        (1, 1.0, events.ScriptEnded("refused", "", 0, 0)),
    )
    assert state.phase == "refused"
    assert state.step == 0


def test_what_happens_again_in_a_second_attempt_is_worth_another_look() -> None:
    said: list[tuple[int, float, Any]] = [
        (0, 0.0, attached(0)),
        (0, 1.0, miss()),
        (0, 2.0, events.ScriptEnded("raised", "ValueError", 1, 0)),
    ]
    state = after(*said, (1, 2.0, attached(1)), (1, 2.5, miss()))
    kinds = ["miss", "failure"]
    assert [mark.kind for mark in state.marks] == kinds
    for heard in heard_of(
        *((rank, 10 + seconds, event) for rank, seconds, event in said), attempt=1
    ):
        state.take(heard)
    assert [mark.kind for mark in state.marks] == kinds * 2
    assert [mark.attempt for mark in state.marks] == [0, 0, 1, 1]
    misses = [row for row in event_rows(View(state)) if row[3].text == "miss"]
    assert [row[2].text for row in misses] == ["0", "x2"]


def test_a_rank_without_a_model_takes_no_steps() -> None:
    root = events.RootFound("model", "Net", "ddp", 4, 100)
    state = after((0, 0.0, attached(0)), (1, 0.0, attached(1)), (0, 0.5, root), (0, 1.0, step(1)))
    assert state.step == 1


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
