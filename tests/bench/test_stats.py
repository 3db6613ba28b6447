"""The bench's arithmetic: ratios, intervals, and what a bar makes of them."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("stats")


@pytest.fixture
def report(stats: ModuleType) -> ModuleType:
    return importlib.import_module("report")


def _rounds(seconds: float, noise: float, seed: int) -> list[list[float]]:
    rng = random.Random(seed)
    return [[seconds + rng.uniform(0, noise) for _ in range(8)] for _ in range(20)]


def test_twice_as_fast_is_a_ratio_of_two(stats: ModuleType) -> None:
    ratio = stats.speed_ratio([[[1.0, 1.0]] * 3], [[[2.0, 2.0]] * 3])
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


def test_the_interval_holds_one_for_equal_ways(stats: ModuleType) -> None:
    ratio = stats.speed_ratio([_rounds(1.0, 0.2, 1)], [_rounds(1.0, 0.2, 2)])
    assert ratio.low < 1.0 < ratio.high
    assert ratio.low > 0.8


def test_a_slow_round_of_both_ways_does_not_move_the_ratio(stats: ModuleType) -> None:
    fast, slow = [1.0] * 4, [3.0] * 4
    ratio = stats.speed_ratio([[fast, slow, fast]], [[fast, slow, fast]])
    assert (ratio.low, ratio.high) == (1.0, 1.0)


def test_a_process_that_is_slow_for_life_widens_the_interval(stats: ModuleType) -> None:
    """One start of each way says 0.8 without a doubt; the other starts say that it was chance."""
    usual = [_rounds(1.0, 0.01, seed) for seed in range(5)]
    one_slow = [*usual[:2], _rounds(1.25, 0.01, 2), *usual[3:]]
    alone = stats.speed_ratio(one_slow[2:3], usual[2:3])
    among = stats.speed_ratio(one_slow, usual)
    assert alone.high < 0.85
    assert among.value == pytest.approx(0.8**0.2, abs=0.01)
    assert among.low < 0.95
    assert among.high > 0.99


@pytest.mark.parametrize(("seconds", "outcome"), [(1.2, "FAIL"), (0.8, "ok"), (1.0, "open")])
def test_a_bar_fails_only_when_the_whole_interval_is_on_the_wrong_side(
    report: ModuleType, seconds: float, outcome: str
) -> None:
    ways = importlib.import_module("ways")
    bar = ways.Bar("speed", ways.PLAN_EAGER, ways.EAGER, 1.0)
    verdicts = report.verdicts(
        [bar],
        {
            ways.PLAN_EAGER.name: _figures([_rounds(seconds, 0.1, 1)]),
            ways.EAGER.name: _figures([_rounds(1.0, 0.1, 2)]),
        },
    )
    assert [verdict.outcome for verdict in verdicts] == [outcome, "ok"]


@pytest.mark.parametrize(
    ("mebibytes", "outcome"),
    [((105, 106, 105), "FAIL"), ((100, 101, 100), "ok"), ((100, 101, 104), "open")],
)
def test_memory_is_judged_by_the_spread_of_its_starts(
    report: ModuleType, mebibytes: tuple[int, ...], outcome: str
) -> None:
    ways = importlib.import_module("ways")
    bar = ways.Bar("memory", ways.PLAN_EAGER, ways.EAGER, 1.02)
    figures = {ways.PLAN_EAGER.name: _figures([[[1.0]]], peak_rss=mebibytes)}
    figures[ways.EAGER.name] = _figures([[[1.0]]], peak_rss=(100, 101, 100))
    assert report.verdicts([bar], figures)[0].outcome == outcome


def test_a_first_call_may_be_two_seconds_later(report: ModuleType) -> None:
    ways = importlib.import_module("ways")
    bar = ways.Bar("first call", ways.PLAN_EAGER, ways.EAGER, 1.05)
    figures = {ways.PLAN_EAGER.name: _figures([[[1.0]]], warm=4.9)}
    figures[ways.EAGER.name] = _figures([[[1.0]]], warm=3.0)
    assert report.verdicts([bar], figures)[0].outcome == "ok"


def test_a_region_compiled_twice_fails(report: ModuleType) -> None:
    figures = {"way": _figures([[[1.0]]], again=("warm, rank 1: Net.forward",))}
    assert report.verdicts([], figures)[0].outcome == "FAIL"


def _figures(
    steps: list[list[list[float]]],
    warm: float = 1.0,
    again: tuple[str, ...] = (),
    peak_rss: tuple[int, ...] = (1,),
) -> object:
    measure = importlib.import_module("measure")
    return measure.Figures(
        steps=steps,
        cpu=0.1,
        peak_rss=peak_rss,
        cold=None,
        warm=warm,
        own=None,
        compiled_again=again,
    )
