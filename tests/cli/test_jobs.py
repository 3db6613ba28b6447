"""Real torchrun jobs under `sgplan apply`: how they end, and that nothing is left of them."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from sgplan.interpreter.events import ScriptEnded
from tests.gloo.harness import BIN, Job, run_job

pytestmark = pytest.mark.gloo
TRAIN = Path(__file__).parent / "scripts" / "train.py"
EMPTY = "sgplan 1\n"


def train(folder: Path, fault: str = "none", *, nproc: int = 2, **env: str) -> Job:
    environ = {"FAULT": fault, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3", **env}
    return run_job(TRAIN, folder=folder, nproc=nproc, plan=EMPTY, env=environ, timeout=120)


def report(job: Job) -> dict[str, object]:
    assert job.run is not None
    return json.loads((job.run / "report.json").read_text())


def test_a_job_that_trains_ends_well_and_reports(tmp_path: Path) -> None:
    job = train(tmp_path).ok()
    assert "done after" in job.stderr
    assert (report(job)["steps"], report(job)["outcome"]) == (5, "done")


def test_a_failing_script_keeps_its_traceback_and_status(tmp_path: Path) -> None:
    job = train(tmp_path, "fail")
    assert job.returncode == 1  # torchrun's own for a failed rank
    assert "exitcode  : 3" in job.stderr
    assert "the command ended with status 1 after 3 steps under the plan" in job.stderr
    assert {end.words for rank in (0, 1) for end in job.of(ScriptEnded, rank)} == {
        "exited with status 3"
    }
    assert not job.orphans


def test_a_script_that_fails_before_its_first_step_is_told_so(tmp_path: Path) -> None:
    job = train(tmp_path, "fail", FAULT_STEP="0")
    assert "before its first step; sgplan had attached to 2 ranks" in job.stderr


@pytest.mark.slow  # torchrun itself gives a rank 30 s
def test_a_rank_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    job = train(tmp_path, "refuse")
    assert job.returncode != 0
    assert not job.orphans


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_killed_rank_leaves_no_loader_worker(tmp_path: Path, context: str) -> None:
    job = train(tmp_path, context)
    assert job.returncode != 0
    assert not job.orphans


def test_a_killed_torchrun_leaves_no_rank(tmp_path: Path) -> None:
    job = train(tmp_path, "kill_launcher")
    assert job.returncode == 137
    assert "was ended by SIGKILL after 3 steps" in job.stderr
    assert not job.orphans


def test_a_killed_apply_leaves_no_process(tmp_path: Path) -> None:
    job = train(tmp_path, "kill_parent")
    assert job.returncode == -9
    assert not job.orphans


@pytest.mark.parametrize("fault", ["hang_up", "interrupt"])
def test_a_signal_to_apply_stops_the_job(tmp_path: Path, fault: str) -> None:
    job = train(tmp_path, fault)
    assert job.returncode != 0
    assert "after 3 steps under the plan" in job.stderr
    assert not job.orphans


def test_two_jobs_at_once_and_a_stranger_on_the_usual_port(tmp_path: Path) -> None:
    jobs: dict[int, Job] = {}
    command = [str(BIN / "torchrun"), "--nproc-per-node", "2", str(TRAIN)]

    def start(number: int) -> None:
        folder = tmp_path / str(number)
        jobs[number] = run_job(command, folder=folder, plan=EMPTY, timeout=120)

    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", 29500))
        threads = [threading.Thread(target=start, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [jobs[number].ok().returncode for number in range(2)] == [0, 0]


INFERENCE = """
import torch
model = torch.nn.Linear(4, 2)
with torch.no_grad():
    print(model(torch.ones(1, 4)).shape)
"""
SPAWN = """
import torch
def work(number):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=1)
"""
POOL = """
import os, torch
from torch._inductor.compile_worker.subproc_pool import SubprocPool
pool = SubprocPool(1)
seen = pool.submit(eval, "[__import__('os').environ['SGPLAN_RANK_PID'], "
                         "'sgplan' in __import__('sys').modules]").result(60)
print(seen == [str(os.getpid()), False])
pool.shutdown()
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [(INFERENCE, "only runs inference"), (SPAWN, "mp.spawn")],
    ids=["inference", "spawn"],
)
def test_a_script_that_cannot_be_planned_is_named(tmp_path: Path, text: str, said: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    job = run_job(script, folder=tmp_path / "job", nproc=0, plan=EMPTY, timeout=120)
    assert job.returncode == 1
    assert said in job.stderr


def test_inductors_compile_workers_have_nothing_of_ours(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(POOL)
    job = run_job(script, folder=tmp_path / "job", nproc=0, plan=EMPTY, timeout=120)
    assert job.stdout == "True\n"
    assert job.run is not None
    assert len(list(job.run.glob("events-*.msgpack"))) <= 1


@pytest.mark.slow
def test_the_log_has_every_warning_of_eight_ranks(tmp_path: Path) -> None:
    job = train(tmp_path, "warn", nproc=8).ok()
    assert job.run is not None
    log = (job.run / "log" / "stderr.log").read_text()
    for rank in range(8):
        assert log.count(f"of rank {rank}\n") == 20
    assert "×8 ranks" in job.stderr
