"""Ranks whose communication would not match stop together, with the first difference named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gloo.harness import BIN, Job, run_job

from .kit import CASES, EMPTY

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]

# Interpreter start and torch's import come on top of the ten seconds that ranks may take.
START = 15.0
LIMIT = 10.0

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
    ("what", "named"),
    [("order", "parameter"), ("shape", "shape"), ("dtype", "dtype")],
)
@pytest.mark.parametrize("plan", [EMPTY, "sgplan 1\ncapture { engine = inductor }\n"])
def test_other_parameters_on_one_rank_stop_all(
    tmp_path: Path, what: str, named: str, plan: str
) -> None:
    job = run_job(CASES / "disagree.py", what, folder=tmp_path, plan=plan, timeout=60)
    _check_stopped(job)
    text = _texts(job)
    assert named in text or "first" in text, text


def test_another_plan_on_one_host_stops_all(tmp_path: Path) -> None:
    tmp_path.joinpath("plan0.sgplan").write_text(EMPTY)
    tmp_path.joinpath("plan1.sgplan").write_text("sgplan 1\nsync { bucket = 1MiB }\n")
    tmp_path.joinpath("two_hosts.py").write_text(TWO_HOSTS)
    launcher = [sys.executable, "two_hosts.py", str(BIN / "sgplan"), str(BIN / "torchrun")]
    job = run_job(
        [*launcher, str(_free_port()), str(CASES / "faults.py"), "b103"],
        folder=tmp_path,
        timeout=60,
    )
    assert job.returncode != 0, job.report()
    assert "codes 1 1" in job.stdout
    assert "sync.bucket" in job.stderr or "plan" in job.stderr
    assert not job.orphans


def _check_stopped(job: Job) -> None:
    assert job.returncode != 0, job.report()
    assert not job.orphans
    assert job.seconds < START + LIMIT
    codes = {diagnostic["code"] for diagnostic in job.diagnostics()}
    assert codes, job.report()
    assert all(code.startswith("SG10") for code in codes), codes


def _texts(job: Job) -> str:
    return " ".join(f"{d['message']} {' '.join(d['notes'])}" for d in job.diagnostics())


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
