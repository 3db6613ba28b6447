"""The harness itself: a tool that hides a hang or leaves processes behind is worse than none."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from .harness import JobTimeout, run_job

HANG = """
import os, subprocess, sys, time
print("the parent hangs", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(301)"], start_new_session=True)
time.sleep(301)
"""
ORPHAN = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(302)"], start_new_session=True)
"""
MEET = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(f"rank {dist.get_rank()} sum {x.item():g} threads {torch.get_num_threads()}\\n", end="")
dist.destroy_process_group()
"""


ABORTS_ONCE = """
import os, sys
from pathlib import Path
before = Path("tries").exists()
Path("tries").write_text("again" if before else "once")
if not before:
    print("terminate called without an active exception", file=sys.stderr)
    os.abort()
"""


def _script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_output_and_status_come_through(tmp_path: Path) -> None:
    script = _script(
        tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    )
    job = run_job(script, folder=tmp_path, nproc=0)
    assert (job.returncode, job.stdout, job.stderr) == (3, "out\n", "err\n")


def test_a_timeout_kills_the_whole_tree_and_shows_the_output(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(JobTimeout, match="hangs"):
        run_job(_script(tmp_path, HANG), folder=tmp_path, nproc=0, timeout=2)
    assert time.monotonic() - started < 10
    assert not _alive("time.sleep(301)")


def test_an_orphan_is_found_and_ended(tmp_path: Path) -> None:
    job = run_job(_script(tmp_path, ORPHAN), folder=tmp_path, nproc=0)
    assert len(job.orphans) == 1
    assert not _alive("time.sleep(302)")


def test_a_whole_command_can_be_given(tmp_path: Path) -> None:
    job = run_job([sys.executable, "-c", "print(6 * 7)"], folder=tmp_path)
    assert job.ok().stdout == "42\n"


@pytest.mark.gloo
def test_ranks_meet_over_a_free_port_with_one_thread_each(tmp_path: Path) -> None:
    job = run_job(_script(tmp_path, MEET), folder=tmp_path, timeout=60).ok()
    assert sorted(job.stdout.splitlines()) == [f"rank {r} sum 2 threads 1" for r in (0, 1)]


def test_a_plain_script_that_stock_torch_aborts_runs_again(tmp_path: Path) -> None:
    job = run_job(_script(tmp_path, ABORTS_ONCE), folder=tmp_path, nproc=0)
    assert job.returncode == 0
    assert (tmp_path / "tries").read_text() == "again"


def test_a_script_that_ends_badly_otherwise_does_not(tmp_path: Path) -> None:
    script = _script(tmp_path, ABORTS_ONCE.replace("without an active", "after"))
    assert run_job(script, folder=tmp_path, nproc=0).returncode != 0
    assert (tmp_path / "tries").read_text() == "once"


def test_a_command_that_aborts_so_does_not(tmp_path: Path) -> None:
    script = _script(tmp_path, ABORTS_ONCE)
    assert run_job([sys.executable, str(script)], folder=tmp_path).returncode != 0


def _alive(words: str) -> list[str]:
    """Process ids of every process whose command holds these words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words.encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:  # it ended while we looked
            continue
    return found
