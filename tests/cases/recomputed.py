"""Scripts whose activations a plan may compute again; nothing here knows of it.

torchrun --standalone --nproc-per-node 2 recomputed.py CASE
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from result import gradients, numbers, report
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.outer(self.drop(F.gelu(self.inner(self.norm(x))))))


class Net(nn.Module):
    """Four blocks; `reentrant` puts every other one into a checkpoint of the script's own."""

    def __init__(self, dropout: float = 0.0, reentrant: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(4))
        self.head = nn.Linear(WIDTH, 4)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for place, block in enumerate(self.blocks):
            if self.reentrant is not None and place % 2:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            else:
                x = block(x)
        return self.head(x)


class Branches(nn.Module):
    """Two independent dropout branches; the second is smaller and is needed last."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(WIDTH, 512), nn.Linear(WIDTH, 4)
        self.middle, self.head = nn.Linear(512, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        large = F.dropout(torch.relu(self.large(x)), 0.3)
        small = F.dropout(torch.relu(self.small(x)), 0.3)
        return self.head(torch.cat([small, self.middle(large)], 1))


def train(model: nn.Module) -> dict[str, list[float]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        loss = model(numbers(step, 32, WIDTH)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "gradients": gradients(model)}


def compiled() -> None:
    """DDP on a model that the script compiles."""
    report("compiled", **train(DDP(torch.compile(Net()))))


def eager() -> None:
    """A script that compiles nothing, with dropout."""
    report("eager", **train(DDP(Net(0.1)) if dist.is_initialized() else Net(0.1)))


def b061() -> None:
    """Checkpoints of both kinds inside of a module."""
    found = [train(Net(0.1, reentrant)) for reentrant in (True, False)]
    report("b061", first=found[0]["losses"], second=found[1]["losses"])


def b063() -> None:
    report("b063", **train(Branches()))


CASES = {case.__name__: case for case in (compiled, eager, b061, b063)}


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch._dynamo.config.optimize_ddp = False
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        CASES[name]()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
