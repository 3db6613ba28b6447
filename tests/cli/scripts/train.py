"""A tiny DDP training; `FAULT` names what goes wrong at step 3, in which rank."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 5
RANK = int(os.environ["RANK"])


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    time.sleep(1)  # events are written five times a second; a kill loses what is not
    if RANK == 0:
        os.kill(pid, signum)
    time.sleep(600)


def refuse_to_go() -> None:
    if RANK == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    time.sleep(0.5)
    sys.exit(1)


def start_workers(context: str) -> None:
    """Two loader workers that hold on to their rank, which is then killed."""
    data = TensorDataset(torch.arange(1000))
    loader = DataLoader(data, num_workers=2, multiprocessing_context=context)
    iterator = iter(loader)
    next(iterator)
    if RANK == 0:
        kill(os.getpid())
    time.sleep(600)


def warn_often() -> None:
    for number in range(20):
        warnings.warn(f"warning {number} of rank {RANK}", stacklevel=1)


FAULTS = {
    "none": lambda: None,
    "fail": lambda: sys.exit(3),
    "refuse": refuse_to_go,
    "fork": lambda: start_workers("fork"),
    "spawn": lambda: start_workers("spawn"),
    "warn": warn_often,
    "kill_launcher": lambda: kill(os.getppid()),
    "kill_parent": lambda: kill(int(os.environ["SGPLAN_PARENT"])),
    "hang_up": lambda: kill(int(os.environ["SGPLAN_PARENT"]), signal.SIGHUP),
    "interrupt": lambda: kill(int(os.environ["SGPLAN_PARENT"]), signal.SIGINT),
}


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, int(os.environ.get("WIDTH", "2"))))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        if step == int(os.environ.get("FAULT_STEP", "3")):
            FAULTS[os.environ.get("FAULT", "none")]()
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
