"""Runs the plain scripts of `tests/cases` and reads what they report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gloo.harness import Job, run_job

CASES = Path(__file__).parent.parent / "cases"
EMPTY = "sgplan 1\n"
INDUCTOR = "sgplan 1\ncapture { engine = inductor  recompiles = 100 }\n"


def plain(script: str, *args: str, folder: Path, nproc: int = 2, timeout: float = 240) -> Job:
    """A script by itself, which must end well."""
    return run_job(CASES / script, *args, folder=folder, nproc=nproc, timeout=timeout).ok()


def planned(
    script: str, *args: str, folder: Path, plan: str, nproc: int = 2, timeout: float = 280
) -> Job:
    """A script under a plan, which must end well."""
    return run_job(
        CASES / script, *args, folder=folder, nproc=nproc, plan=plan, timeout=timeout
    ).ok()


def result(job: Job, case: str, rank: int = 0) -> dict[str, Any]:
    """What one rank reported of a case.

    Raises:
        AssertionError: it reported nothing.
    """
    file = job.folder / f"result-{case}-{rank}.json"
    assert file.exists(), f"no result of {case}\n{job.report()}"
    return json.loads(file.read_text())


def results(job: Job, case: str, nproc: int = 2) -> list[dict[str, Any]]:
    return [result(job, case, rank) for rank in range(nproc)]


def close(plain_result: dict[str, Any], planned_result: dict[str, Any], tolerance: float) -> None:
    """Every list of numbers agrees to `tolerance`, everything else exactly."""
    assert list(plain_result) == list(planned_result)
    for name, value in plain_result.items():
        expected = value
        if isinstance(value, list):
            expected = pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True)
        assert planned_result[name] == expected, name
