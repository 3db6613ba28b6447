from __future__ import annotations

import pytest

from sgplan.interpreter import registry
from sgplan.interpreter.run import Cursor
from sgplan.interpreter.track import NoTrack
from sgplan.planner.program import INSTRUCTIONS, Deliver, Free, Run, Wait

from . import world  # registers the handlers


class Log:
    """A state whose instructions are ready when they are let."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.let: set[str] = set()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Two instruction classes carried out by writing them down."""

    def handler(kind: type) -> registry.Handler:
        name = kind.__name__
        return registry.Handler(
            lambda state, _: name in state.let, lambda state, _: state.done.append(name)
        )

    table = {kind: handler(kind) for kind in (Wait, Deliver)}
    monkeypatch.setattr(registry, "_handlers", table)
    return Log()


STREAM = (Wait(("b0",)), Deliver("model", 2))


def test_every_instruction_is_handled_or_entered_by_the_script() -> None:
    assert world.PLANNER
    assert registry.handled() | registry.ENTERED_BY_SCRIPT == set(INSTRUCTIONS)
    assert not registry.handled() & registry.ENTERED_BY_SCRIPT


def test_registering_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="`Free` has a handler already"):
        registry.handles(Free)(lambda state, instruction: None)


def test_a_run_is_not_the_cursors_to_carry_out() -> None:
    with pytest.raises(KeyError):
        Cursor([Run("model", (), (), eager=True)], None, NoTrack())


def test_a_cursor_never_skips_what_is_not_ready(log: Log) -> None:
    cursor = Cursor(STREAM, log, NoTrack())
    log.let = {"Deliver"}
    cursor.advance()
    assert log.done == []
    assert cursor.current == STREAM[0]


def test_a_cursor_carries_out_all_that_is_ready_in_order(log: Log) -> None:
    cursor = Cursor(STREAM, log, NoTrack())
    log.let = {"Wait", "Deliver"}
    cursor.advance()
    assert log.done == ["Wait", "Deliver"]
    assert cursor.done
    assert cursor.current is None


def test_the_end_of_a_phase_makes_everything_ready(log: Log) -> None:
    cursor = Cursor(STREAM, log, NoTrack())
    cursor.advance(to_end=True)
    assert log.done == ["Wait", "Deliver"]
    assert cursor.done


def test_a_cursor_stands_still_behind_a_failed_instruction(log: Log) -> None:
    def fail(state: Log, instruction: object) -> None:
        raise RuntimeError("no peer")

    registry._handlers[Deliver] = registry.Handler(registry.always, fail)
    cursor = Cursor(STREAM, log, NoTrack())
    log.let = {"Wait"}
    with pytest.raises(RuntimeError, match="no peer"):
        cursor.advance()
    assert cursor.current == STREAM[1]


def test_rewinding_starts_the_stream_again(log: Log) -> None:
    cursor = Cursor(STREAM, log, NoTrack())
    log.let = {"Wait", "Deliver"}
    cursor.advance()
    cursor.rewind()
    cursor.advance()
    assert log.done == ["Wait", "Deliver"] * 2
