"""Faults that users of neighbouring tools reported, B006 to B107, each with the right value.

B002 and B008's whole-training form are the numeric cases `static_graph` and `checkpointed`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sgplan.interpreter import events
from tests.gloo.harness import Job, run_job

from .kit import CASES, EMPTY, INDUCTOR, close, plain, planned, result, results

pytestmark = pytest.mark.gloo

EAGER_CASES = ("b004", "b012", "b101", "b103", "b105", "b107")
GRAPH_CASES = ("b012", "b101", "b103", "b105", "b107")
UNEQUAL_CASES = ("different_graphs", "one_rank_on_hooks")
WHOLE = "sgplan 1\ncapture { engine = inductor  graph = whole }\n"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("plain")
    return plain("faults.py", *GRAPH_CASES, *UNEQUAL_CASES, "b004", "b014", folder=folder)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("eager")
    return planned("faults.py", *EAGER_CASES, folder=folder, plan=EMPTY)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("inductor")
    return planned("faults.py", *GRAPH_CASES, folder=folder, plan=INDUCTOR, timeout=280)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Ranks that do not do the same thing, each within what stock DDP allows."""
    folder = tmp_path_factory.mktemp("unequal")
    return planned("faults.py", *UNEQUAL_CASES, folder=folder, plan=INDUCTOR)


@pytest.mark.parametrize("case", EAGER_CASES)
def test_the_eager_engine_runs_it_exactly_as_plain(stock: Job, eager: Job, case: str) -> None:
    for ours, theirs in zip(results(eager, case), results(stock, case), strict=True):
        close(theirs, ours, 0.0)


@pytest.mark.parametrize("case", GRAPH_CASES)
def test_the_compiled_engine_runs_it_as_plain(stock: Job, compiled: Job, case: str) -> None:
    for ours, theirs in zip(results(compiled, case), results(stock, case), strict=True):
        close(theirs, ours, 1e-5)


def test_b006_breaks_between_blocks_run_or_are_announced(tmp_path: Path) -> None:
    by_hand = plain("faults.py", "b006", folder=tmp_path / "plain", nproc=1)
    ours = planned("faults.py", "b006", folder=tmp_path / "ours", nproc=1, plan=EMPTY)
    close(result(by_hand, "b006"), result(ours, "b006"), 1e-5)
    assert ours.of(events.CaptureMissed)


def test_b008_gradients_of_many_buckets_equal_one_process_in_float64(tmp_path: Path) -> None:
    plan = "sgplan 1\nsync { bucket = 4KiB  first_bucket = 4KiB }\n"
    job = planned("faults.py", "b008", folder=tmp_path, plan=plan)
    (step,) = job.of(events.StepFinished)
    assert step.in_graph + step.by_hooks >= 3
    assert result(job, "b008")["worst"] < 1e-14


def test_b010_a_smaller_last_batch_recompiles_at_most_once(tmp_path: Path) -> None:
    by_hand = plain("faults.py", "b010", folder=tmp_path / "plain")
    job = planned("faults.py", "b010", folder=tmp_path / "ours", plan=EMPTY)
    for ours, theirs in zip(results(job, "b010"), results(by_hand, "b010"), strict=True):
        close(theirs, ours, 1e-6)
    recompiles = [e for e in job.of(events.CompileFinished) if e.why]
    assert len(recompiles) <= 1


def test_b014_a_whole_graph_means_the_graph_inside_the_wrapper(stock: Job, tmp_path: Path) -> None:
    job = planned("faults.py", "b014", folder=tmp_path, plan=WHOLE)
    close(result(stock, "b014"), result(job, "b014"), 1e-5)
    assert not job.of(events.CaptureMissed)


@pytest.mark.timeout(120)
def test_b016_a_rank_that_runs_out_of_batches_is_named_with_the_step(tmp_path: Path) -> None:
    plan = "sgplan 1\nsync { timeout = 10s }\n"
    job = run_job(CASES / "faults.py", "b016", folder=tmp_path, plan=plan, timeout=90)
    assert job.returncode != 0
    assert not job.orphans
    assert job.seconds < 60
    assert re.search(r"rank 1\b.*\bstep 4\b", job.stderr.replace("\n", " ")), job.stderr


@pytest.mark.parametrize("case", UNEQUAL_CASES)
def test_unequal_ranks_train_as_under_stock(stock: Job, unequal: Job, case: str) -> None:
    for ours, theirs in zip(results(unequal, case), results(stock, case), strict=True):
        close(theirs, ours, 1e-5)


def test_ranks_with_other_graphs_are_noted(unequal: Job) -> None:
    notes = [note.text for rank in (0, 1) for note in unequal.of(events.NoteAdded, rank)]
    assert any("graph" in text and "rank" in text for text in notes), notes


def test_a_rank_on_hooks_beside_one_in_graph_is_noted(unequal: Job) -> None:
    last = [unequal.of(events.StepFinished, rank)[-1] for rank in (0, 1)]
    assert [(step.in_graph > 0, step.by_hooks > 0) for step in last] == [
        (True, False),
        (False, True),
    ]
    assert unequal.of(events.FallbackTaken, 1)
