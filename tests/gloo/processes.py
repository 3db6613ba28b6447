"""Finds and ends every process of one job. Knows Linux `/proc` and nothing of torch or sgplan.

A job is marked by a variable in its environment, because torchrun starts its workers in sessions
of their own: neither a process group nor the parent chain finds a worker whose launcher died.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "SGPLAN_TEST_JOB"


@dataclass(frozen=True, slots=True)
class Process:
    """One live process of a job."""

    pid: int
    command: str


def find(job: str) -> list[Process]:
    """Every live process whose environment carries this job's mark."""
    needle = f"{MARK}={job}".encode()
    return [
        Process(int(entry.name), _command(entry))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _carries(entry, needle)
    ]


def end(job: str, patience: float = 10.0) -> list[Process]:
    """SIGKILL every process of the job until none is left; returns those that were alive.

    Raises:
        TimeoutError: some process survived SIGKILL for `patience` seconds.
    """
    ended: dict[int, Process] = {}
    deadline = time.monotonic() + patience
    while alive := find(job):
        if time.monotonic() > deadline:
            raise TimeoutError(f"could not end {alive}")
        for process in alive:
            ended[process.pid] = process
            _kill(process.pid)
        time.sleep(0.02)
    return list(ended.values())


def settle(job: str, patience: float) -> list[Process]:
    """Wait until the job has no process any more; what is alive after `patience` is an orphan."""
    deadline = time.monotonic() + patience
    while (alive := find(job)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _carries(entry: Path, needle: bytes) -> bool:
    # A zombie's environ reads as empty, so it never counts as alive.
    try:
        return needle in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "?"
