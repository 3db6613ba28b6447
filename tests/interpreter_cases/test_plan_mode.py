"""`sgplan plan` runs a script up to its first backward: everything listed, nothing updated."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgplan.interpreter import events
from tests.gloo.harness import Job, run_job

from .kit import CASES, EMPTY

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(240)]

SCRIPTS = (
    "eager",
    "compiled",
    "evaluates_first",
    "graph_break",
    "catches_exceptions",
    "one_rank_steps",
)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    return {script: _plan(script, tmp_path_factory.mktemp(script)) for script in SCRIPTS}


def _plan(script: str, folder: Path) -> Job:
    return run_job(
        CASES / "plannable.py", script, folder=folder, plan=EMPTY, verb=("plan",), timeout=120
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_ends_well_on_every_rank_without_a_step(jobs: dict[str, Job], script: str) -> None:
    job = jobs[script].ok()
    assert not list(job.folder.glob("stepped-*")), "a parameter was updated"
    assert [job.of(events.ScriptEnded, rank)[-1].how for rank in (0, 1)] == ["planned"] * 2


@pytest.mark.parametrize("script", SCRIPTS)
def test_forward_and_backward_of_every_region_are_listed(jobs: dict[str, Job], script: str) -> None:
    job = jobs[script].ok()
    regions = {e.region for e in job.of(events.GraphCaptured) if e.direction == "forward"}
    backwards = {e.region for e in job.of(events.GraphCaptured) if e.direction == "backward"}
    assert regions == backwards
    assert len(regions) == (2 if script == "graph_break" else 1)
    assert "reduce.start b0 axis=data" in job.stdout
    assert "deliver model grads (4)" in job.stdout


def test_a_graph_break_is_named_with_its_place_and_reason(jobs: dict[str, Job]) -> None:
    missed = jobs["graph_break"].of(events.CaptureMissed)
    assert any("plannable.py" in miss.where for miss in missed)
    assert "plannable.py" in jobs["graph_break"].output
    assert "User-inserted graph break" in jobs["graph_break"].output
