"""The search for the pass behind a difference: few runs, and the right one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from sgplan.planner.numerics import NumericChange
from sgplan.proof.findings import Comparison, Difference, Place
from sgplan.proof.jobs import Done
from sgplan.proof.trace import first_failing, trace

FIRST = Difference("gradients", Place(0, 1, "backward", "w"), 1.0, 0.0)
DONE = Done(Path(), (), ())
CHANGES = [NumericChange(f"pass{number}", "sync") for number in range(7)]


def found(fails: bool) -> tuple[Comparison, Done]:
    return Comparison(first=FIRST if fails else None, steps=1), DONE


@pytest.mark.parametrize("culprit", range(7))
def test_the_culprit_is_found_in_few_runs(culprit: int) -> None:
    tried: list[int] = []

    def attempt(first: Any) -> tuple[Comparison, Done]:
        tried.append(len(first))
        return found(len(first) > culprit)

    count, (comparison, _) = first_failing(CHANGES, found(True), attempt)
    assert count == culprit + 1
    assert comparison.first is FIRST
    assert len(tried) <= math.log2(len(CHANGES) + 1) + 1


def test_a_script_that_differs_from_itself_is_to_blame() -> None:
    traced = trace(CHANGES, found(True), lambda first: found(True), _no_probe)
    assert traced.culprit.name == "the script"
    assert "not reproducible" in traced.culprit.how


def test_without_any_change_the_script_is_run_again_before_it_is_blamed() -> None:
    tried: list[int] = []

    def attempt(first: Any) -> tuple[Comparison, Done]:
        tried.append(len(first))
        return found(True)

    assert first_failing([], found(True), attempt)[0] == 0
    assert tried == [0]


def _no_probe(change: NumericChange, first: Any, difference: Difference) -> Done:
    raise AssertionError("nothing to probe")
