"""Runs one training job in real processes, plainly or under a plan, and says what it did.

Every job has a hard timeout that kills its whole process tree and reports each rank's last event
and the last lines of output. Ports are free ones, one compute thread a rank, and the compile cache
is a folder shared by all test sessions of this user, never the user's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sgplan.interpreter import events as contract

from . import processes
from .runs import last_lines, rank_events, ranks_in

BIN = Path(sys.executable).parent
CACHE = Path(tempfile.gettempdir()) / f"sgplan-tests-cache-{os.getuid()}"
ORPHAN_PATIENCE = 3.0
_GLOO_ABORT = "terminate called without an active exception"
"""A thread of gloo that drops the last reference to Python's tensors while Python ends aborts the
process. Stock torch does so, rarely, at the very end of a script that trained well."""
_PLAIN_TRIES = 3
_SCRUBBED = (
    "SGPLAN_",
    "TORCHINDUCTOR_",
    "TORCH_LOGS",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_",
)

Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class Job:
    """A finished job.

    Attributes:
        run: the run folder, None for a plain job.
        orphans: processes still alive `ORPHAN_PATIENCE` after the command ended (killed by then).
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    folder: Path
    run: Path | None
    orphans: tuple[str, ...]

    def events(self, rank: int = 0) -> list[Any]:
        """Every event of one rank, in order."""
        assert self.run is not None, "a plain job has no events"
        return [event for _, event in rank_events(self.run, rank)]

    def of(self, kind: type[Event], rank: int = 0) -> list[Event]:
        """The events of one kind of one rank, in order."""
        return [event for event in self.events(rank) if isinstance(event, kind)]

    def diagnostics(self) -> list[dict[str, Any]]:
        """Every refusal and warning of every rank."""
        assert self.run is not None
        return [
            event.diagnostic
            for rank in ranks_in(self.run)
            for event in self.of(contract.DiagnosticRaised, rank)
        ]

    @property
    def output(self) -> str:
        return f"{self.stdout}\n{self.stderr}"

    def ok(self) -> Job:
        """Itself, when it ended well and left no process behind."""
        assert self.returncode == 0, f"exit status {self.returncode}\n{self.report()}"
        assert not self.orphans, f"orphans: {self.orphans}"
        return self

    def report(self) -> str:
        """What a person needs when it went wrong."""
        return _report(self.folder, self.run)


class JobTimeout(AssertionError):
    """The job did not end in time; all its processes were killed."""


def run_job(
    script: Path | Sequence[str],
    *args: str,
    folder: Path,
    nproc: int = 2,
    plan: str | None = None,
    verb: Sequence[str] = ("apply",),
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> Job:
    """Run a script (or a whole command) and wait for its end.

    A plain script that stock torch aborts at its end is run again; a planned one never is.

    Args:
        script: a training script, or a command as a list of words (then `nproc` is not used).
        args: arguments of the script.
        folder: working directory of the job; output, plan and run folder go there.
        nproc: ranks under torchrun; 0 starts the script as one plain process.
        plan: text of a plan; None runs without sgplan.
        verb: the sgplan command and its options in front of the plan file.
        env: variables on top of the cleaned environment; the harness's own can be replaced.
        timeout: seconds until the whole process tree is killed.

    Raises:
        JobTimeout: it did not end in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = None if plan is None else folder / "run"
    command = [*_planned(folder, run, plan, verb), *_command(script, args, nproc)]
    tries = _PLAIN_TRIES if plan is None and isinstance(script, Path) else 1
    job = _attempt(command, folder, run, env, timeout)
    while tries > 1 and job.returncode != 0 and _GLOO_ABORT in job.stderr:
        tries -= 1
        job = _attempt(command, folder, run, env, timeout)
    return job


def _attempt(
    command: Sequence[str],
    folder: Path,
    run: Path | None,
    env: Mapping[str, str] | None,
    timeout: float,
) -> Job:
    job = uuid.uuid4().hex
    started = time.monotonic()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(
            command, cwd=folder, env=_environment(job, env), stdin=subprocess.DEVNULL,
            stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            report = f"no end after {timeout:g} s: {' '.join(command)}\n{_report(folder, run)}"
            raise JobTimeout(report) from None
        finally:
            seconds = time.monotonic() - started
            orphans = _sweep(job, child)
    return Job(
        returncode=child.returncode,
        stdout=(folder / "stdout").read_text(errors="replace"),
        stderr=(folder / "stderr").read_text(errors="replace"),
        seconds=seconds,
        folder=folder,
        run=run,
        orphans=orphans,
    )


def _sweep(job: str, child: subprocess.Popen[bytes]) -> tuple[str, ...]:
    """Leave nothing of the job behind; returns what outlived its command."""
    orphans = ()
    if child.poll() is not None:
        orphans = tuple(p.command for p in processes.settle(job, ORPHAN_PATIENCE))
    processes.end(job)
    child.wait()
    return orphans


def _command(script: Path | Sequence[str], args: Sequence[str], nproc: int) -> list[str]:
    if not isinstance(script, Path):
        return [*script, *args]
    if nproc == 0:
        return [sys.executable, str(script), *args]
    torchrun = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={nproc}"]
    return [*torchrun, str(script), *args]


def _planned(folder: Path, run: Path | None, plan: str | None, verb: Sequence[str]) -> list[str]:
    if plan is None:
        return []
    (folder / "plan.sgplan").write_text(plan)
    return [str(BIN / "sgplan"), *verb, "--run-dir", str(run), "plan.sgplan", "--"]


def _environment(job: str, extra: Mapping[str, str] | None) -> dict[str, str]:
    """The parent's environment without what would leak into a job, and the job's own settings.

    TMPDIR moves Inductor's default cache and its precompiled headers at once; the headers do not
    follow TORCHINDUCTOR_CACHE_DIR.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_SCRUBBED)}
    own = {
        processes.MARK: job,
        "TMPDIR": str(CACHE),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, **own, **(extra or {})}


def _report(folder: Path, run: Path | None) -> str:
    parts = [f"--- {name}\n{last_lines(folder / name, 40)}" for name in ("stdout", "stderr")]
    if run is not None:
        for rank in ranks_in(run):
            recorded = rank_events(run, rank)
            last = recorded[-1][1] if recorded else "nothing recorded"
            parts.append(f"--- rank {rank}, {len(recorded)} events, the last: {last}")
    return "\n".join(parts)
