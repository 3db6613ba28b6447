"""A small model with everything that a wrong pass can break: dropouts, BatchNorm, a tied weight.

torchrun --standalone --nproc-per-node 2 verified.py [compile] [plain] [unseeded] [irreproducible]
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16


class Layer(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.outer, self.drop = nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.outer(F.gelu(self.inner(self.norm(x)))))


class Net(nn.Module):
    """Two layers between an embedding and an output that share one weight; counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, WIDTH)
        self.left, self.right = nn.Dropout(0.2), nn.Dropout(0.4)
        self.layers = nn.ModuleList([Layer(0.1), Layer(0.3)])
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls.add_(1)
        x = self.tokens(tokens)
        x = self.left(x) + self.right(x)
        for layer in self.layers:
            x = layer(x)
        return F.linear(x, self.tokens.weight)


def main() -> None:
    words = set(sys.argv[1:])
    if fault := os.environ.get("FAULTY_PASS"):
        import faulty_passes

        faulty_passes.install(fault)
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
        torch._dynamo.config.optimize_ddp = False
    rank = dist.get_rank() if distributed else 0
    if "unseeded" not in words:
        torch.manual_seed(0)
    net = Net()
    model: nn.Module = net if not distributed or "plain" in words else DistributedDataParallel(net)
    if "compile" in words:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seed = time.time_ns() if "irreproducible" in words else rank
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        tokens = torch.randint(32, (24,), generator=generator)
        loss = F.cross_entropy(model(tokens), tokens.roll(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
