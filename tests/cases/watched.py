"""Runs to look at: healthy, guard misses, a hang, some of the ranks, slow, failing, with warnings.

torchrun --standalone --nproc-per-node 4 watched.py CASE
"""

from __future__ import annotations

import argparse
import os
import signal
import time
import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

CASES = ("healthy", "storm", "hang", "part", "slow", "fails", "warns")
STEPS = 40


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))
        )
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    case = parser.parse_args().case
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    group = None
    if case == "part":  # rank 2 takes no part in the reductions
        group = dist.new_group([0, 1])
        if rank == 2:
            dist.barrier()
            return
    model = DistributedDataParallel(Net(), process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data, target = torch.randn(64, 64), torch.randint(10, (64,))
    if case == "fails" and rank == 2:
        raise FileNotFoundError("no shard `train-00002.bin` below /data")
    if case == "warns":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        for number in range(20):
            warnings.warn(f"rank {rank} warns {number}", stacklevel=1)
    for step in range(STEPS):
        batch = 16 + step % 7 if case == "storm" else 32
        if (case, rank, step) in (("hang", 2, 20), ("part", 1, 20)):
            os.kill(os.getpid(), signal.SIGSTOP)
        if case == "slow" and rank == 1:
            time.sleep(0.06)
        time.sleep(0.02)
        loss = nn.functional.cross_entropy(model(data[:batch]), target[:batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if case == "part":
        dist.barrier()
    dist.destroy_process_group()


main()
