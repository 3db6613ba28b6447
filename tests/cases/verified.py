"""A small model with everything that a wrong pass can break: dropouts, BatchNorm, a tied weight.

torchrun --standalone --nproc-per-node 2 verified.py [WORD]...

    compile         the script compiles its model
    plain           no DDP
    unseeded        torch's generator is left as it is
    restless        it starts from the time of day
    autocast        the model computes in bf16 inside
    irreproducible  other data in every run
    phases          a layer that 16 bits are too few for
    ragged          batches of two sizes, and a model in which rows do not meet
    scaler          a GradScaler around loss and step
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


class Clock(nn.Module):
    """Angles of many turns: what rounds them loses all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.speeds = nn.Linear(2, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.sin(self.speeds(torch.stack([30.0 * tokens, 7.0 * tokens], dim=-1)))


class Net(nn.Module):
    """Two layers between an embedding and an output that share one weight; counts its calls."""

    def __init__(self, phases: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, WIDTH)
        self.clock = Clock() if phases else None
        self.left, self.right = nn.Dropout(0.2), nn.Dropout(0.4)
        self.layers = nn.ModuleList([Layer(0.1), Layer(0.3)])
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls.add_(1)
        x = self.tokens(tokens)
        if self.clock is not None:
            x = x + self.clock(tokens)
        x = self.left(x) + self.right(x)
        for layer in self.layers:
            x = layer(x)
        return F.linear(x, self.tokens.weight)


class Rows(nn.Module):
    """A row of the result depends on the same row of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(32, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.gelu(self.norm(self.tokens(tokens))))


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
        torch.manual_seed(time.time_ns() if "restless" in words else 0)
    net = Rows() if "ragged" in words else Net("phases" in words)
    model: nn.Module = net if not distributed or "plain" in words else DistributedDataParallel(net)
    if "autocast" in words:
        net.forward = torch.autocast("cpu", torch.bfloat16)(net.forward)
    if "compile" in words:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seed = time.time_ns() if "irreproducible" in words else rank
    generator = torch.Generator().manual_seed(seed)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, enabled="scaler" in words)
    for step in range(5):
        size = 17 if "ragged" in words and step % 2 else 24
        tokens = torch.randint(32, (size,), generator=generator)
        loss = F.cross_entropy(model(tokens), tokens.roll(1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(f"loss {loss.item():.6f}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
