"""Starts training jobs and lets them work one at a time, each parked at its gate in between.

A job's ranks park themselves after every round (`train.py` says how); this module waits for that,
opens the gates, and reads what the ranks left behind. It knows nothing of ways being compared.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import environment

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
POLL = 0.02


class JobFailed(RuntimeError):
    """A job ended, or was silent for too long, before it was told to end."""


@dataclass(slots=True)
class GatedJob:
    """One running job.

    Attributes:
        folder: gate, output, plan and run folder of the job.
        rounds: how many rounds were let through.
        patience: seconds it may take to reach the next gate.
    """

    name: str
    process: subprocess.Popen[bytes]
    folder: Path
    ranks: int
    patience: float
    rounds: int = 0

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def wait_parked(self) -> None:
        """Until every rank stands at the gate."""
        self._wait([self.folder / f"parked-{r}-{self.rounds}" for r in range(self.ranks)])

    def go(self) -> None:
        """Let one round through, and wait for its end."""
        self._tell("go")
        self.rounds += 1
        self.wait_parked()

    def finish(self) -> list[dict[str, Any]]:
        """End the job; returns the timings of every rank."""
        self._tell("stop")
        try:
            status = self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            raise JobFailed(f"{self.name}: did not end\n{self._output()}") from None
        if status != 0:
            raise JobFailed(f"{self.name}: exit status {status}\n{self._output()}")
        files = [self.folder / f"timings-{rank}.json" for rank in range(self.ranks)]
        return [json.loads(file.read_text()) for file in files]

    def kill(self) -> None:
        """End it at once; torchrun and `sgplan apply` pass SIGTERM on to the ranks."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _tell(self, word: str) -> None:
        for rank in range(self.ranks):
            _write_line(self.folder / f"go-{rank}", word, time.monotonic() + self.patience)

    def _wait(self, files: list[Path]) -> None:
        deadline = time.monotonic() + self.patience
        while not all(file.exists() for file in files):
            if self.process.poll() is not None:
                raise JobFailed(f"{self.name}: ended early\n{self._output()}")
            if time.monotonic() > deadline:
                raise JobFailed(f"{self.name}: silent for {self.patience:g} s\n{self._output()}")
            time.sleep(POLL)

    def _output(self) -> str:
        return "\n".join((self.folder / "output").read_text(errors="replace").splitlines()[-30:])


def start(
    name: str,
    folder: Path,
    args: list[str],
    *,
    plan: str | None,
    ranks: int,
    cache: Path,
    patience: float = 600.0,
) -> GatedJob:
    """Start a job; it runs until its first gate.

    Args:
        args: arguments of `train.py`, without the gate's.
        plan: text of the plan, None by hand.
        cache: Inductor's cache folder.
    """
    folder.mkdir(parents=True)
    for rank in range(ranks):
        os.mkfifo(folder / f"go-{rank}")
    command = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(HERE / "train.py"), "--gate", str(folder), *args]
    if plan is not None:
        (folder / "plan.sgplan").write_text(plan)
        command = [
            str(BIN / "sgplan"), "apply", "--run-dir", str(folder / "run"),
            str(folder / "plan.sgplan"), "--", *command,
        ]  # fmt: skip
    settings = environment(OMP_NUM_THREADS="1", TORCHINDUCTOR_CACHE_DIR=str(cache))
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=settings, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    return GatedJob(name, process, folder, ranks, patience)


def _write_line(fifo: Path, word: str, deadline: float) -> None:
    """Write into a fifo once somebody reads it; a plain open would wait for a dead rank."""
    while True:
        try:
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(POLL)
    os.write(writer, f"{word}\n".encode())
    os.close(writer)
