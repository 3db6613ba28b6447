"""A few hundred steps of the byte-level GPT in bf16, against the same steps in float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgplan.interpreter import events
from tests.gloo.harness import Job, run_job

pytestmark = [pytest.mark.gloo, pytest.mark.slow]

TRAIN = Path(__file__).parents[2] / "plans" / "gpt_bytes" / "train.py"
SMALL = ("--layers", "2", "--dim", "64", "--heads", "2", "--length", "32", "--batch", "8")
RUN = (*SMALL, "--megabytes", "1", "--steps", "300", "--sample", "1")
WIDE = "sgplan 1\ncapture { engine = inductor }\n"
LOW = """sgplan 1
precision "main" { compute = bf16  keep_fp32 = [norm, softmax, loss] }
"""


def losses(job: Job) -> list[float]:
    found = [event.loss for event in job.of(events.StepFinished) if event.loss is not None]
    assert len(found) == 300
    return found


def test_bf16_trains_as_float32_does(tmp_path: Path) -> None:
    """The mean loss of three windows of ten steps agrees within 2 %."""
    wide, low = (
        losses(run_job(TRAIN, *RUN, folder=tmp_path / name, nproc=1, plan=plan, timeout=900).ok())
        for name, plan in (("wide", WIDE), ("low", LOW))
    )
    assert wide != low
    assert sum(wide[290:]) < 0.75 * sum(wide[:10])
    for end in (100, 200, 300):
        mean = [sum(run[end - 10 : end]) / 10 for run in (low, wide)]
        print(f"steps {end - 9}-{end}: bf16 {mean[0]:.4f}, float32 {mean[1]:.4f}")
        assert mean[0] == pytest.approx(mean[1], rel=0.02)
