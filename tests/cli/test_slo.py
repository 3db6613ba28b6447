"""Service levels: judged over a window, cleared when they hold again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgplan.grammar.plan import Slo
from sgplan.interpreter import events
from sgplan.interpreter.events import SloBreached, SloCleared, StepFinished
from sgplan.interpreter.record import Record, Recorder, header
from sgplan.loading import checked
from sgplan.observer import Observer
from sgplan.reader import Heard
from sgplan.slo import LEAST, SILENT, UNJUDGED, WINDOW, ServiceLevels, SloWatch, p99
from sgplan.summary import Summary


def step(number: int, seconds: float, samples: int = 8) -> StepFinished:
    return StepFinished(number, seconds, 0.0, 0.0, samples, None, False, 1, 0)


def told(levels: ServiceLevels, *seconds: float, begin: int = 1) -> list[object]:
    """One rank's steps."""
    found: list[object] = []
    for number, took in enumerate(seconds, begin):
        found += levels.step(0, step(number, took))
    return found


@pytest.mark.parametrize(("count", "place"), [(1, 0), (50, 49), (100, 98), (200, 197)])
def test_p99_is_by_nearest_rank(count: int, place: int) -> None:
    assert p99([float(n) for n in reversed(range(count))]) == place


def test_a_slow_step_breaches_and_leaves_the_window_again() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 1)
    assert told(levels, 3.0, *[0.01] * LEAST) == []  # the first step compiles
    (breach,) = told(levels, 0.2, begin=LEAST + 2)
    assert breach == SloBreached("step_p99", 0.05, 0.2, LEAST + 2)
    assert levels.breached == {"step_p99"}
    # One in a hundred is within the 99th percentile.
    (clear,) = told(levels, *[0.01] * 100, begin=LEAST + 3)
    assert isinstance(clear, SloCleared)
    assert clear.measured == 0.01
    assert levels.breached == set()


def test_a_step_is_as_slow_as_on_its_slowest_rank() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 2)
    found: list[object] = []
    for number in range(1, LEAST + 2):
        found += levels.step(0, step(number, 0.01))
        found += levels.step(1, step(number, 0.01 if number <= LEAST else 0.3))
    assert [type(each) for each in found] == [SloBreached]


@pytest.mark.parametrize("slow", [30, 2 * WINDOW])
def test_a_rank_whose_steps_are_written_later_is_compared_step_by_step(slow: int) -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 2)
    for number in range(1, slow + 1):
        levels.step(0, step(number, 0.2 if number == slow else 0.01))
    found: list[object] = []
    for number in range(1, slow + 1):
        found += levels.step(1, step(number, 0.01))
        assert bool(found) == (number == slow and slow < 100)
    for number in range(slow + 1, slow + 3):  # twice in a hundred is once too often
        for rank in (0, 1):
            found += levels.step(rank, step(number, 0.2))
    assert [type(each) for each in found] == [SloBreached]


def test_throughput_is_of_all_ranks_together() -> None:
    levels = ServiceLevels(Slo(throughput=1000.0), 2)
    found: list[object] = []
    for number in range(1, LEAST + 2):
        for rank in (0, 1):
            found += levels.step(rank, step(number, 0.02))
    (breach,) = found
    assert isinstance(breach, SloBreached)
    assert breach.measured == pytest.approx(800.0)


def test_a_restarted_rank_compiles_again() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 1)
    told(levels, 1.0, *[0.01] * LEAST)
    levels.restarted()
    assert told(levels, 9.0, *[0.01] * LEAST) == []


def test_the_window_forgets() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 1)
    told(levels, 1.0, *[0.2] * WINDOW)
    assert levels.breached
    told(levels, *[0.01] * WINDOW, begin=WINDOW + 2)
    assert not levels.breached


def both(levels: ServiceLevels, first: int, last: int, seconds: float = 0.01) -> list[object]:
    """Steps of two ranks side by side."""
    return [
        found
        for number in range(first, last + 1)
        for rank in (0, 1)
        for found in levels.step(rank, step(number, seconds))
    ]


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 2)
    both(levels, 1, 15)
    for number in range(16, 19):  # the last of these ranks' steps was written before its end
        assert levels.step(0, step(number, 0.3)) == []
    (breach,) = levels.ended(1)
    assert breach == SloBreached("step_p99", 0.05, 0.3, 16)
    assert told(levels, 0.01, begin=19) == []
    assert levels.measured["throughput"] < 1600.0  # what is left is one rank's


def test_a_rank_that_falls_silent_while_others_go_on_is_not_waited_for() -> None:
    """Under `join()` its script goes on and takes no steps."""
    levels = ServiceLevels(Slo(step_p99=0.05), 2)
    second = 1_000_000_000
    for number in range(1, 6):
        for rank in (0, 1):
            levels.step(rank, step(number, 1.0), number * second)
    found: list[object] = []
    for number in range(6, 40):
        found += levels.step(0, step(number, 1.0), number * second)
        assert bool(found) == (number >= 5 + LEAST and number > 5 + SILENT)
    levels.step(1, step(6, 9.0), 41 * second)  # it was only slow: it is waited for again
    assert levels.step(0, step(40, 1.0), 41 * second) == []


def test_a_rank_that_is_never_heard_of_is_not_waited_for_at_the_end() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 2)
    assert told(levels, 3.0, *[0.2] * LEAST) == []
    (breach, *_) = levels.finish()
    assert isinstance(breach, SloBreached)


def test_few_steps_are_judged_at_the_end() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05, throughput=1.0), 2)
    assert both(levels, 1, 4, 0.2) == []
    assert levels.finish() == [SloBreached("step_p99", 0.05, 0.2, 4)]


def test_what_was_judged_is_not_judged_again_at_the_end() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 2)
    assert both(levels, 1, 40) == []
    assert levels.finish() == []


def summary_of(folder: Path, *said: events.StepFinished) -> Summary:
    """What is known of a run of one rank that has ended."""
    plan = checked("p.sgplan", "sgplan 1\nslo { step_p99 = 50ms }\n", ())
    recorder = Recorder(folder / "events-0.msgpack", header(0, 1, "apply"))
    recorder.emit(events.RankAttached, 0, 1, 7, "python", "2.13", "apply")
    for event in said:
        recorder.emit(StepFinished, *(getattr(event, name) for name in event.__slots__))
    recorder.close()
    observer = Observer(folder, SloWatch(folder, plan))
    observer.finish()
    return observer.summary


@pytest.mark.parametrize(
    ("seconds", "breached", "noted"),
    [
        ((), False, []),
        ((3.0,), False, [UNJUDGED]),
        ((3.0, 0.2), True, []),
        ((3.0, 0.01), False, []),
    ],
)
def test_a_short_run_is_judged_or_told_that_it_was_not(
    tmp_path: Path, seconds: tuple[float, ...], breached: bool, noted: list[str]
) -> None:
    summary = summary_of(tmp_path, *(step(n, took) for n, took in enumerate(seconds, 1)))
    assert bool(summary.levels) == breached
    assert [line.text for line in summary.notes.lines()] == noted
    assert [line.ranks for line in summary.notes.lines()] == [()] * len(noted)
    assert set(summary.ranks) == {0}


def test_a_rank_that_is_started_again_after_others_have_stepped_wipes_nothing(
    tmp_path: Path,
) -> None:
    watch = SloWatch(tmp_path, checked("p.sgplan", "sgplan 1\nslo { step_p99 = 50ms }\n", ()))

    def say(rank: int, event: object) -> None:
        watch.take(Heard(rank, 1, Record(1, event, 0)))

    def attach(rank: int) -> None:
        say(rank, events.RankAttached(rank, 2, 7, "python", "2.13", "apply"))

    for rank in (0, 1, 0):
        attach(rank)
    for number in (1, 2):
        say(0, step(number, 0.2))
    attach(1)
    for number in (1, 2):
        say(1, step(number, 0.01))
    assert watch.levels is not None
    watch.levels.finish()
    assert watch.levels.measured["step_p99"] == 0.2


def test_ranks_of_an_earlier_attempt_are_forgotten() -> None:
    """A launcher starts all of them anew, whoever failed."""
    levels = ServiceLevels(Slo(step_p99=0.05), 2)
    both(levels, 1, 30)
    levels.step(0, step(31, 0.01))
    levels.restarted()
    both(levels, 1, 5, 0.2)
    assert levels.measured["step_p99"] == 0.01
    assert both(levels, 6, LEAST + 1, 0.2)
