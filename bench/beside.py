"""A training of one rank beside which a dashboard is opened and closed: does a step take longer?

The steps are those that the run itself reports. The rank is pinned to the first core and the
dashboard to the second, so what is measured is what they share: caches, memory and disk.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from gated import BIN
from stats import Interval, speed_ratio
from terminal import Terminal

from sgplan.interpreter import events
from sgplan.interpreter.record import read_events

SCRIPT = """
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

os.sched_setaffinity(0, {0})
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(384, 384) for _ in range(8))))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(64, 384)
end = time.monotonic() + float(os.environ["SECONDS"])
while time.monotonic() < end:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

_OPENS = 1.0  # seconds of a start that are not counted: they are those of an import


def step_time_ratio(
    work: Path, top: Callable[[Path], Terminal], rounds: int, seconds: float
) -> tuple[Interval, int]:
    """The time of a step with the dashboard open over that without it, and how many steps that is.

    Args:
        top: opens the dashboard of a run folder.
        seconds: of each of the two parts of a round.
    """
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    (work / "empty.sgplan").write_text("sgplan 1\n")
    whole = 2 * rounds * (seconds + _OPENS) + 5.0
    command = [
        *(str(BIN / "sgplan"), "apply", "--run-dir", "run", "empty.sgplan", "--"),
        *(str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "1", "train.py"),
    ]
    environ = {**os.environ, "SECONDS": str(whole), "OMP_NUM_THREADS": "1"}
    ends = {True: list[tuple[int, int]](), False: list[tuple[int, int]]()}
    with subprocess.Popen(command, cwd=work, env=environ, stderr=subprocess.DEVNULL) as job:
        _until_it_trains(work / "run" / "events-0.msgpack")
        for _ in range(rounds):
            time.sleep(_OPENS)
            ends[False].append(_between(lambda: time.sleep(seconds)))
            with top(work / "run") as terminal:
                os.sched_setaffinity(terminal.process.pid, {max(os.sched_getaffinity(0))})
                terminal.watch(_OPENS)
                ends[True].append(_between(lambda: terminal.watch(seconds)))
        job.terminate()
    steps = [
        (record.time_ns, record.event.seconds)
        for record in read_events(work / "run" / "events-0.msgpack")
        if isinstance(record.event, events.StepFinished)
    ]

    def of(kind: bool) -> list[list[float]]:
        return [[each for at, each in steps if a < at <= b] for a, b in ends[kind]]

    opened, closed = of(True), of(False)
    return speed_ratio(closed, opened), sum(map(len, [*opened, *closed]))


def _between(wait: Callable[[], None]) -> tuple[int, int]:
    began = time.time_ns()
    wait()
    return began, time.time_ns()


def _until_it_trains(path: Path) -> None:
    deadline = time.monotonic() + 120.0
    while not path.exists() or path.stat().st_size < 5000:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} does not grow")
        time.sleep(0.2)
