"""Precision stages on a plain script of two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgplan.interpreter import events

from .kit import planned, results

pytestmark = pytest.mark.gloo

FP32 = 'sgplan 1\nprecision "a" { compute = fp32 }\n'
BF16 = 'sgplan 1\nprecision "b" { compute = bf16  keep_fp32 = norm }\n'
BOTH = """sgplan 1
precision "a" { steps = 0..2  compute = fp32 }
precision "b" { steps = 3..   compute = bf16  keep_fp32 = norm }
"""


def test_a_switch_compiles_nothing_and_each_step_is_that_of_its_stage(tmp_path: Path) -> None:
    both = planned("staged.py", folder=tmp_path / "both", plan=BOTH)
    high = planned("staged.py", folder=tmp_path / "high", plan=FP32)
    low = planned("staged.py", folder=tmp_path / "low", plan=BF16)
    for ours, fp32, bf16 in zip(
        *(results(job, "staged") for job in (both, high, low)), strict=True
    ):
        for name in ("losses", "sums"):
            assert ours[name] == fp32[name][:3] + bf16[name][3:]
        assert all(f != b for f, b in zip(fp32["losses"], bf16["losses"], strict=True))
    assert len(both.of(events.CompileStarted)) == 2
    assert len(high.of(events.CompileStarted)) == 1
