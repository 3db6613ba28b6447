"""The ranks of a host share what is compiled: each graph is lowered once, and not again later."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sgplan.interpreter import events
from tests.gloo.harness import Job, run_job

from .kit import CASES, EMPTY

pytestmark = [pytest.mark.gloo, pytest.mark.slow]


def start(tmp_path: Path, name: str) -> Job:
    """Two ranks with a cache of their own."""
    return run_job(
        CASES / "recomputed.py", "compiled", folder=tmp_path / name, plan=EMPTY, timeout=280,
        env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
    ).ok()  # fmt: skip


def lowered(job: Job) -> Counter[str]:
    """Graphs that the ranks together lowered, by region."""
    counts: Counter[str] = Counter()
    for rank in (0, 1):
        for event in job.of(events.CompileFinished, rank):
            counts[event.region] += event.lowered
    return +counts


def test_every_graph_is_lowered_once_on_a_host_and_never_again(tmp_path: Path) -> None:
    cold = start(tmp_path, "cold")
    captured = Counter(event.region for event in cold.of(events.GraphCaptured))
    assert captured.total() >= 2  # a forward and a backward
    assert lowered(cold) == captured
    assert lowered(start(tmp_path, "warm")) == Counter()
