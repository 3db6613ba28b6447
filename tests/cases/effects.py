"""Models that change buffers and inputs and draw random numbers; nothing here knows of a plan.

torchrun --standalone --nproc-per-node 1 effects.py CASE
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from result import numbers, report
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Changing(nn.Module):
    """Running statistics, a counter, an input that is changed in place, no randomness."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 8)
        self.bn = nn.BatchNorm1d(32)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, tally: Tensor) -> Tensor:
        self.seen += 1
        h = self.bn(F.gelu(self.inner(x)))
        tally.add_(h.detach().mean(0))
        return self.outer(h) * self.seen + tally.sum()


class Drawing(Changing):
    def forward(self, x: Tensor, tally: Tensor) -> Tensor:
        h = F.dropout(super().forward(x, tally), 0.5)
        return h + torch.rand_like(h)


class Branching(Changing):
    def forward(self, x: Tensor, tally: Tensor) -> Tensor:
        y = super().forward(x, tally)
        if y.sum() > 0:
            y = y * 2
        return y


def fit(case: str, module: nn.Module) -> None:
    model = DDP(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    tally = torch.zeros(32)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = model(numbers(step, 6, 16), tally).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    buffers = {name: value.double().flatten().tolist() for name, value in module.named_buffers()}
    report(case, losses=losses, tally=tally.tolist(), **buffers)


CASES = {"changing": Changing, "drawing": Drawing, "branching": Branching}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    fit(sys.argv[1], CASES[sys.argv[1]]())
    dist.destroy_process_group()
