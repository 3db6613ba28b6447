"""Effects under a plan with every pass over graphs active; paths that depend on data."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sgplan.interpreter import events
from tests.gloo.harness import run_job

from .kit import CASES, close, plain, planned, result

pytestmark = pytest.mark.gloo

# The kernel is put into Dynamo's graph, the bias is split in Inductor's, reductions stand inside.
PASSES = """sgplan 1
capture { engine = inductor }
sync { by = in_graph }
fuse "kernel" { match = bias -> aten.gelu  with = triton("sgplan:bias_gelu") }
fuse "norm"   { match = norm  on_miss = warn }
"""
SPLIT = """sgplan 1
capture { engine = inductor }
fuse "bias" { match = bias -> aten.gelu  on_miss = warn }
"""
# Casts and a scale are put into Dynamo's graph too, and ops are computed again.
ALL = f"""{PASSES}
precision "low" {{ compute = fp16  keep_fp32 = norm  loss_scale = 1024 }}
recompute {{ match = pointwise }}
"""


@pytest.mark.parametrize(
    ("plan", "tolerance"),
    [
        pytest.param(PASSES, 1e-5, marks=pytest.mark.slow, id="kernel"),
        pytest.param(SPLIT, 1e-5, marks=pytest.mark.slow, id="split"),
        pytest.param(ALL, 2e-2, id="all"),
    ],
)
def test_buffers_and_inputs_change_as_in_eager(tmp_path: Path, plan: str, tolerance: float) -> None:
    by_hand = plain("effects.py", "changing", folder=tmp_path / "plain", nproc=1)
    job = planned("effects.py", "changing", folder=tmp_path / "ours", nproc=1, plan=plan)
    close(result(by_hand, "changing"), result(job, "changing"), tolerance)
    assert result(job, "changing")["seen"] == [4.0]
    assert not job.of(events.CaptureMissed)


def test_the_listing_counts_effects(tmp_path: Path) -> None:
    job = planned("effects.py", "drawing", folder=tmp_path, nproc=1, plan=SPLIT)
    sgplan = str(Path(sys.executable).with_name("sgplan"))
    done = subprocess.run(
        [sgplan, "show", str(job.run)], capture_output=True, text=True, timeout=60, check=True
    )
    forward = next(line for line in done.stdout.splitlines() if line.startswith("graph fwd0"))
    assert re.search(r"\b3 random, 5 mutations\b", forward), done.stdout


def test_a_branch_on_data_under_a_whole_graph_is_quoted_with_its_form(tmp_path: Path) -> None:
    plan = "sgplan 1\ncapture { engine = inductor  graph = whole }\n"
    job = run_job(CASES / "effects.py", "branching", folder=tmp_path, nproc=1, plan=plan)
    assert job.returncode != 0
    assert "SG0503" in job.stderr
    assert re.search(r"effects\.py:\d+: if y\.sum\(\) > 0:", job.stderr), job.stderr
    assert "y = torch.cond(y.sum() > 0, then, otherwise, (y,))" in job.stderr


def test_the_same_branch_is_a_counted_break_under_prefer(tmp_path: Path) -> None:
    plan = "sgplan 1\ncapture { engine = inductor  graph = prefer }\n"
    by_hand = plain("effects.py", "branching", folder=tmp_path / "plain", nproc=1)
    job = planned("effects.py", "branching", folder=tmp_path / "ours", nproc=1, plan=plan)
    close(result(by_hand, "branching"), result(job, "branching"), 1e-5)
    (miss,) = job.of(events.CaptureMissed)
    assert re.fullmatch(r"effects\.py:\d+", miss.where)
    assert "data-dependent branching" in miss.why.lower()
