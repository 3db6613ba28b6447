"""A training of one rank beside which a dashboard runs, and does not: does a step take longer?

The steps are those that the run itself reports. The rank is pinned to the first core, the dashboard
and the terminal to the last, so what is measured is what they share: caches, memory and disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from environment import environment
from gated import BIN
from stats import Interval, median_of
from terminal import Terminal

from sgplan.interpreter import events
from sgplan.interpreter.record import read_events

Window = tuple[int, int]
"""Begin and end in wall-clock nanoseconds."""

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

_SETTLES = 0.2  # seconds behind each change that are not counted: a start, and what was missed


def step_time_ratio(
    work: Path, top: Callable[[Path], Terminal], pairs: int, seconds: float
) -> tuple[Interval, int]:
    """The time of a step with the dashboard running over that without it, and how many steps.

    One dashboard is stopped (SIGSTOP) and let go on again, in pairs of short windows next to each
    other, in turn the one and the other first. The speed of a host moves more slowly than that, so
    the pairs' ratios differ little where the figures of whole seconds differ much.

    Args:
        top: opens the dashboard of a run folder.
        seconds: of each of the two windows of a pair.
    """
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    (work / "empty.sgplan").write_text("sgplan 1\n")
    whole = 2 * pairs * (seconds + _SETTLES) + 10.0
    command = [
        *(str(BIN / "sgplan"), "apply", "--run-dir", "run", "empty.sgplan", "--"),
        *(str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "1", "train.py"),
    ]
    environ = environment(SECONDS=str(whole), OMP_NUM_THREADS="1")
    last = {max(os.sched_getaffinity(0))}
    windows: list[dict[bool, Window]] = []
    with subprocess.Popen(command, cwd=work, env=environ, stderr=subprocess.DEVNULL) as job:
        _until_it_trains(work / "run" / "events-0.msgpack")
        with _pinned(last), top(work / "run") as terminal:  # the dashboard inherits it
            terminal.watch(2.0)
            for number in range(pairs):
                order = (True, False) if number % 2 else (False, True)
                windows.append({on: _window(terminal, on, seconds) for on in order})
            os.kill(terminal.process.pid, signal.SIGCONT)
        job.terminate()
    steps = [
        (record.time_ns, record.event.seconds)
        for record in read_events(work / "run" / "events-0.msgpack")
        if isinstance(record.event, events.StepFinished)
    ]
    return _judged(windows, steps)


def _judged(
    windows: Sequence[Mapping[bool, Window]], steps: Sequence[tuple[int, float]]
) -> tuple[Interval, int]:
    """The ratio of the pairs, and the steps that it was taken from."""
    ratios: list[float] = []
    used = 0
    for pair in windows:
        of = {
            on: [took for at, took in steps if began < at - 1e9 * took and at <= ended]
            for on, (began, ended) in pair.items()
        }
        if of[True] and of[False]:
            ratios.append(median(of[True]) / median(of[False]))
            used += len(of[True]) + len(of[False])
    return median_of(ratios), used


def _window(terminal: Terminal, on: bool, seconds: float) -> Window:
    """Wall-clock nanoseconds between which the dashboard goes on, or stands still."""
    os.kill(terminal.process.pid, signal.SIGCONT if on else signal.SIGSTOP)
    wait = terminal.watch if on else time.sleep
    wait(_SETTLES)
    began = time.time_ns()
    wait(seconds)
    return began, time.time_ns()


@contextmanager
def _pinned(cores: set[int]) -> Iterator[None]:
    """This process, which plays the terminal, and what it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _until_it_trains(path: Path) -> None:
    deadline = time.monotonic() + 120.0
    while not path.exists() or path.stat().st_size < 5000:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} does not grow")
        time.sleep(0.2)
