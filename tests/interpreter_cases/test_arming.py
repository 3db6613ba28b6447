"""Gradients are reduced exactly when stock DDP reduces them, eager and compiled."""

from __future__ import annotations

import pytest

from sgplan.interpreter.events import StepFinished
from tests.gloo.harness import Job

from .kit import EMPTY, INDUCTOR, close, plain, planned, results

pytestmark = pytest.mark.gloo

# What stock DDP does; the plain run of the same session must say the same.
REDUCED = {
    "forward_outside_backward_inside": True,
    "forward_inside_backward_outside": False,
    "past_the_wrapper": False,
    "past_the_wrapper_after_a_step": False,
    "only_a_penalty": False,
    "armed_by_autograd_grad": True,
    "only_one_rank_goes_past": False,
    "accumulated_where_only_one_rank_goes": True,
}
WAYS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "plain": (None, ()),
    "eager": (EMPTY, ()),
    "compiled": (EMPTY, ("--compile",)),
    "inductor": (INDUCTOR, ()),
}
# The model has one bucket: so many backwards over all cases reduce.
REDUCTIONS = 5


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    found = {}
    for name, (plan, args) in WAYS.items():
        folder = tmp_path_factory.mktemp(name)
        if plan is None:
            found[name] = plain("arming.py", *args, folder=folder)
        else:
            found[name] = planned("arming.py", *args, folder=folder, plan=plan)
    return found


@pytest.mark.parametrize("case", REDUCED)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_reduced_exactly_as_by_stock(
    jobs: dict[str, Job], way: str, case: str
) -> None:
    assert [r["reduced"] for r in results(jobs[way], case)] == [REDUCED[case]] * 2
    for stock, ours in zip(results(jobs["plain"], case), results(jobs[way], case), strict=True):
        close(stock, ours, 0.0 if way == "eager" else 1e-5)


@pytest.mark.parametrize("way", ["eager", "compiled", "inductor"])
@pytest.mark.parametrize("rank", [0, 1])
def test_no_reduction_is_started_beyond_those(jobs: dict[str, Job], way: str, rank: int) -> None:
    steps = jobs[way].of(StepFinished, rank)
    assert sum(step.in_graph + step.by_hooks for step in steps) == REDUCTIONS
