"""`update { optimizer = compiled }` on a script of two ranks, from the plan to the summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgplan.interpreter import events

from .kit import EMPTY, close, planned, result

pytestmark = [pytest.mark.gloo, pytest.mark.slow]


def test_compiled_steps_of_two_ranks_are_those_of_the_script(tmp_path: Path) -> None:
    script = planned("optimized.py", "scheduled", folder=tmp_path / "as_written", plan=EMPTY)
    text = "sgplan 1\nupdate { optimizer = compiled }\n"
    job = planned("optimized.py", "scheduled", folder=tmp_path / "compiled", plan=text)
    for rank in range(2):
        close(result(script, "scheduled", rank), result(job, "scheduled", rank), 1e-6)
        compiles = [e for e in job.of(events.CompileFinished, rank) if e.region == "AdamW.step"]
        # The second is for the betas; twenty learning rates cost none.
        assert len(compiles) == 2
        assert job.of(events.FallbackTaken, rank) == []
    assert not any(e.region == "AdamW.step" for e in script.of(events.CompileFinished))
    (line,) = [line for line in job.stderr.splitlines() if line.startswith("  recompiled")]
    assert "AdamW.step: self.param_groups[0]['betas'][0] 0.9 -> other at optimized.py:" in line
