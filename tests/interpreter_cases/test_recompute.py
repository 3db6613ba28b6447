"""`recompute`, `rounding` and `random` on plain scripts, from the plan to the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgplan.interpreter import events
from sgplan.planner import artefact
from sgplan.planner.facts import GraphFact
from tests.gloo.harness import Job, run_job

from .kit import CASES, close, plain, planned, result, results

pytestmark = pytest.mark.gloo

SCRIPT = "recomputed.py"
HALF = "sgplan 1\nrecompute { memory = 50% }\n"
PAIRS = 'sgplan 1\nrecompute { in = "blocks.*"  every = 2modules }\n'
EXACT = "sgplan 1\ncapture { random = exact }\n"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return plain(SCRIPT, "compiled", "eager", "b063", folder=tmp_path_factory.mktemp("plain"))


def forward(job: Job) -> GraphFact:
    """The forward graph of the first rank that trains."""
    assert job.run is not None
    (root,) = artefact.read(job.run / "run.sgpx").parts[0].facts.roots
    return next(graph for graph in root.graphs if graph.direction == "forward")


@pytest.mark.parametrize("plan", [HALF, pytest.param(PAIRS, marks=pytest.mark.slow)])
def test_ranks_under_recompute_equal_ddp_and_compile(stock: Job, plan: str, tmp_path: Path) -> None:
    cold = planned(SCRIPT, "compiled", folder=tmp_path / "cold", plan=plan)
    for ours, theirs in zip(results(cold, "compiled"), results(stock, "compiled"), strict=True):
        close(theirs, ours, 1e-6)
    found = forward(cold)
    assert found.saved_without is not None
    assert 0 < found.bytes_saved <= found.saved_without / 2
    warm = planned(SCRIPT, "compiled", folder=tmp_path / "warm", plan=plan)
    assert {e.cache for e in warm.of(events.CompileFinished)} == {"hit"}
    assert forward(warm) == found


@pytest.mark.slow
def test_an_eager_script_is_compiled_and_draws_eagers_masks(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "eager", folder=tmp_path, plan=f"{EXACT}recompute {{ memory = 50% }}\n")
    for ours, theirs in zip(results(job, "eager"), results(stock, "eager"), strict=True):
        close(theirs, ours, 1e-6)
    assert {e.engine for e in job.of(events.EngineChosen)} == {"inductor"}
    assert forward(job).recomputed[0].ops > 0


def test_the_plan_shows_bytes_without_and_with_the_clause(tmp_path: Path) -> None:
    job = run_job(
        CASES / SCRIPT, "compiled", folder=tmp_path, plan=HALF, verb=("plan",), timeout=280
    ).ok()
    assert "recompute   memory = 50%   fwd0" in job.stdout
    assert "without recompute" in job.stdout
    assert not job.of(events.StepFinished)


@pytest.mark.slow
def test_a_share_out_of_reach_ends_the_run_before_a_step(tmp_path: Path) -> None:
    plan = f"{EXACT}recompute {{ memory = 1% }}\n"
    job = run_job(CASES / SCRIPT, "eager", folder=tmp_path, plan=plan, timeout=280)
    assert job.returncode == 1
    assert not job.orphans
    assert "SG0730" in job.stderr
    assert "are the least" in job.stderr
    assert not job.of(events.StepFinished)


@pytest.mark.slow
def test_a_clause_that_changes_nothing_ends_the_run(tmp_path: Path) -> None:
    plan = 'sgplan 1\nrecompute { in = "head"  memory = 50% }\n'
    job = run_job(CASES / SCRIPT, "compiled", folder=tmp_path, plan=plan, timeout=280)
    assert job.returncode == 1
    assert "`recompute` changes nothing" in job.stderr
    assert not job.of(events.StepFinished)


def test_b061_checkpoints_of_the_script_keep_the_loss(tmp_path: Path) -> None:
    stock = plain(SCRIPT, "b061", folder=tmp_path / "plain", nproc=1)
    plan = "sgplan 1\ncapture { engine = inductor  random = exact }\n"
    job = planned(SCRIPT, "b061", folder=tmp_path / "planned", plan=plan, nproc=1)
    close(result(stock, "b061"), result(job, "b061"), 1e-6)


def test_b063_two_dropout_branches_draw_in_eagers_order(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "b063", folder=tmp_path, plan=EXACT)
    assert result(job, "b063")["losses"][0] == result(stock, "b063")["losses"][0]
    close(result(stock, "b063"), result(job, "b063"), 1e-6)
