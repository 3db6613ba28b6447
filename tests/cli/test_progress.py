"""The progress line: one line, never in the way of the child's own bytes."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from sgplan.execution import Request, _screen
from sgplan.grammar.planfile import PlanFile
from sgplan.interpreter import events
from sgplan.interpreter.record import Recorder, header
from sgplan.observer import Observer
from sgplan.progress import Silent, SparseLines, TerminalLine
from sgplan.summary import Summary

CLEARED = "\r\x1b[2K"


class Clock:
    """Time that stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    made = Screen()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    return made


class Training:
    """A summary that grows."""

    def __init__(self) -> None:
        self.summary = Summary()
        self.polled = 0
        self.summary.take(0, events.RankAttached(0, 1, 7, "python", "2.13.0", "apply"))

    def poll(self) -> Summary:
        self.polled += 1
        return self.summary

    def step(self) -> None:
        number = self.summary.steps + 1
        self.summary.take(0, events.StepFinished(number, 0.5, 0.0, 0.0, 8, 2.0, False, 1, 0))


def test_the_line_is_painted_and_taken_off(clock: Clock, screen: Screen) -> None:
    training = Training()
    line = TerminalLine(training.poll, screen)
    training.step()
    line.tick(free=True)
    assert "sgplan  step 1  loss 2" in screen.getvalue()
    assert "\n" not in screen.getvalue()
    line.clear()
    assert screen.getvalue().endswith(CLEARED)
    line.clear()
    assert screen.getvalue().count(CLEARED) == 1


def test_the_line_fits_the_terminal(clock: Clock, screen: Screen) -> None:
    training = Training()
    training.summary.take(0, events.CompileStarted("a" * 200))
    TerminalLine(training.poll, screen).tick(free=True)
    assert "…" in screen.getvalue()
    assert "a" * 60 not in screen.getvalue()


def test_nothing_is_painted_over_half_a_line(clock: Clock, screen: Screen) -> None:
    training = Training()
    training.step()
    TerminalLine(training.poll, screen).tick(free=False)
    assert screen.getvalue() == ""


def test_the_line_is_repainted_only_when_it_changed(clock: Clock, screen: Screen) -> None:
    training = Training()
    training.step()
    line = TerminalLine(training.poll, screen)
    for _ in range(5):
        clock.now += 1
        line.tick(free=True)
    assert screen.getvalue().count("step 1") == 1
    training.step()
    clock.now += 1
    line.tick(free=True)
    assert screen.getvalue().count("step 2") == 1


def test_the_files_are_read_twice_a_second_at_most(clock: Clock, screen: Screen) -> None:
    training = Training()
    line = TerminalLine(training.poll, screen)
    for _ in range(100):
        clock.now += 0.01
        line.tick(free=True)
    assert training.polled <= 2


def test_without_a_terminal_lines_are_sparse(clock: Clock, capsys) -> None:
    training = Training()
    lines = SparseLines(training.poll)
    for _ in range(50):
        training.step()
        clock.now += 0.5
        lines.tick(free=True)
    printed = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in printed] == ["1", "21", "41"]
    assert printed[0].startswith("sgplan: step 1  loss 2")


def test_quiet_reads_nothing(capsys) -> None:
    silent = Silent()
    silent.tick(free=True)
    silent.clear()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("progress", ["silent", "unseen"])
def test_a_run_that_paints_nothing_is_read_as_it_goes(progress: str, tmp_path: Path) -> None:
    """Its service levels are judged then, and a dashboard beside it shows them."""
    plan = PlanFile("p.sgplan", "sgplan 1\n")
    request = Request("apply", plan, ("true",), progress=progress)  # pyright: ignore
    observer = Observer(tmp_path)
    screen = _screen(request, observer)
    recorder = Recorder(tmp_path / "events-0.msgpack", header(0, 1, "apply"))
    recorder.emit(events.NoteAdded, "a", "b")
    recorder.close()
    screen.tick(free=True)
    assert observer.summary.ranks
