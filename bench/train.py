"""The training script that is timed: plain PyTorch DDP with AdamW, in rounds of a few steps.

    torchrun --standalone --nproc-per-node 2 train.py --model gpt --compile --fused

Between rounds it may wait at a gate, so that several jobs can be measured in turn: it writes the
file `parked-RANK-ROUND` into the gate's folder and reads a line from the fifo `go-RANK`; `go`
starts the next round, anything else ends the script. Each rank leaves `timings-RANK.json` there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import WORKLOADS, Workload
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=WORKLOADS, required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fused", action="store_true", help="the fused AdamW")
    parser.add_argument("--batch", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--warmup", type=int, default=4, help="steps before the first round")
    parser.add_argument("--steps", type=int, default=8, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=1, help="without a gate")
    parser.add_argument("--gate", type=Path, help="folder of the gate")
    return parser.parse_args()


class Trainer:
    """One rank's model, data and optimizer."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        torch.manual_seed(0)
        self.workload: Workload = WORKLOADS[args.model]
        model = DistributedDataParallel(self.workload.build())
        self.model: nn.Module = torch.compile(model) if args.compile else model
        fused = True if args.fused else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        self.batch = args.batch
        self.rng = torch.Generator().manual_seed(rank)

    def step(self) -> float:
        """One training step; returns its wall seconds."""
        inputs, labels = self.workload.draw(self.batch, self.rng)
        started = time.perf_counter()
        logits = self.model(inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - started


def age() -> float:
    """Seconds since this process was started, the interpreter's own start included."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """CPU time of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def may_go(gate: Path | None, rank: int, number: int, rounds: int) -> bool:
    """Whether there is a further round; at a gate, whoever holds the other end decides."""
    if gate is None:
        return number < rounds
    (gate / f"parked-{rank}-{number}").touch()
    return (gate / f"go-{rank}").read_text().strip() == "go"


def main() -> None:
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # Whole graphs: the cuts of the DDP optimizer are slower here and round elsewhere.
    torch._dynamo.config.optimize_ddp = False
    trainer = Trainer(args, rank)
    trainer.step()
    timings: dict[str, Any] = {"first_call": age(), "steps": [], "cpu": []}
    for _ in range(args.warmup - 1):
        trainer.step()

    number = 0
    while may_go(args.gate, rank, number, args.rounds):
        before = cpu_seconds()
        timings["steps"].append([trainer.step() for _ in range(args.steps)])
        timings["cpu"].append((cpu_seconds() - before) / args.steps)
        number += 1

    timings["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if args.gate is not None:
        (args.gate / f"timings-{rank}.json").write_text(json.dumps(timings))
    elif rank == 0:
        print(json.dumps(timings))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
