"""Service levels: judged over a window, cleared when they hold again."""

from __future__ import annotations

import pytest

from sgplan.grammar.plan import Slo
from sgplan.interpreter.events import SloBreached, SloCleared, StepFinished
from sgplan.slo import LEAST, WINDOW, ServiceLevels, p99


def step(number: int, seconds: float, samples: int = 8) -> StepFinished:
    return StepFinished(number, seconds, 0.0, 0.0, samples, None, False)


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
    levels.restarted(0)
    assert told(levels, 9.0, *[0.01] * LEAST) == []


def test_the_window_forgets() -> None:
    levels = ServiceLevels(Slo(step_p99=0.05), 1)
    told(levels, 1.0, *[0.2] * WINDOW)
    assert levels.breached
    told(levels, *[0.01] * WINDOW, begin=WINDOW + 2)
    assert not levels.breached
