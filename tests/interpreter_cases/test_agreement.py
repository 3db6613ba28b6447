"""Ranks whose communication would not match stop together, with the first difference named."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from sgplan.interpreter import events
from tests.gloo.harness import BIN, run_job
from tests.gloo.runs import rank_events

from .kit import CASES, EMPTY, INDUCTOR

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]

# From the last rank's entering DDP to the end of every rank.
LIMIT_NS = 10 * 10**9

# Two hosts on one machine, each with a plan file of its own; torchrun makes them one job.
TWO_HOSTS = """
import subprocess, sys
sgplan, torchrun, port, script, *args = sys.argv[1:]
jobs = [
    subprocess.Popen([sgplan, "apply", "--run-dir", f"run{host}", f"plan{host}.sgplan", "--",
                      torchrun, "--nnodes=2", "--nproc-per-node=1", f"--node-rank={host}",
                      "--master-addr=127.0.0.1", f"--master-port={port}", script, *args])
    for host in (0, 1)
]
codes = [job.wait() for job in jobs]
print("codes", *codes)
sys.exit(min(codes))
"""


@pytest.mark.parametrize(
    ("what", "here", "there"),
    [
        ("order", "first.weight", "second.weight"),
        ("shape", "8x8", "9x9"),
        ("dtype", "f32", "f64"),
    ],
)
@pytest.mark.parametrize("plan", [EMPTY, INDUCTOR], ids=["eager", "inductor"])
def test_other_parameters_on_one_rank_stop_all(
    tmp_path: Path, what: str, here: str, there: str, plan: str
) -> None:
    job = run_job(CASES / "disagree.py", what, folder=tmp_path, plan=plan, timeout=60)
    assert job.returncode != 0
    assert not job.orphans
    found = job.diagnostics()
    assert {diagnostic["code"] for diagnostic in found} == {"SG1003"}, job.report()
    difference = found[0]["notes"][0]
    assert difference.index(here) < difference.index(there)
    assert difference in job.stderr
    _check_stopped_in_time([job.folder / "run"] * 2)


def test_another_plan_on_one_host_stops_all(tmp_path: Path) -> None:
    tmp_path.joinpath("plan0.sgplan").write_text(EMPTY)
    tmp_path.joinpath("plan1.sgplan").write_text("sgplan 1\nsync { bucket = 1MiB }\n")
    tmp_path.joinpath("two_hosts.py").write_text(TWO_HOSTS)
    launcher = [sys.executable, "two_hosts.py", str(BIN / "sgplan"), str(BIN / "torchrun")]
    script = [str(CASES / "faults.py"), "b103"]
    job = run_job([*launcher, str(_free_port()), *script], folder=tmp_path, timeout=60)
    assert "codes 1 1" in job.stdout, job.report()
    assert job.stderr.count("error[SG1003]") == 2
    assert "the first difference, rank 0 first: `plan " in job.stderr
    assert not job.orphans
    _check_stopped_in_time([tmp_path / "run0", tmp_path / "run1"])


def _check_stopped_in_time(runs: list[Path]) -> None:
    """Rank `n` recorded into the n-th run folder."""
    recorded = [rank_events(run, rank) for rank, run in enumerate(runs)]
    entered = max(_time_of(events.RootFound, own) for own in recorded)
    left = max(_time_of(events.ScriptEnded, own) for own in recorded)
    assert left - entered < LIMIT_NS


def _time_of(kind: type, recorded: list[tuple[int, object]]) -> int:
    return next(time_ns for time_ns, event in recorded if isinstance(event, kind))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
