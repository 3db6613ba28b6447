"""How a plain script leaves its result for a test: one JSON file a rank and case."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_WORKS: list[dist.Work] = []
"""Kept to the end: a thread of gloo that drops the last reference to Python's tensors while Python
ends aborts the process (`terminate called without an active exception`)."""


def report(case: str, **values: Any) -> None:
    """Write `result-CASE-RANK.json` into the working directory."""
    file = Path(f"result-{case}-{os.environ.get('RANK', '0')}.json")
    file.write_text(json.dumps(values))


def gradients(module: nn.Module) -> list[float]:
    """One number a parameter: the sum of its gradient, NaN when it has none."""
    return [
        float("nan") if p.grad is None else p.grad.double().sum().item()
        for p in module.parameters()
    ]


def same_on_all_ranks(module: nn.Module) -> bool:
    """Whether every rank holds the same gradients, that is whether they were reduced."""
    parts = [p if p.grad is None else p.grad for p in module.parameters()]
    missing = [float(p.grad is None) for p in module.parameters()]
    mine = torch.cat([torch.tensor(missing), *(part.detach().flatten() for part in parts)])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    work = dist.all_gather(everyone, mine, async_op=True)
    assert work is not None
    work.wait()
    _WORKS.append(work)
    return all(torch.equal(mine, other) for other in everyone)


def numbers(step: int, *shape: int) -> torch.Tensor:
    """Inputs that differ between ranks and steps."""
    rank = int(os.environ.get("RANK", "0"))
    rng = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(*shape, generator=rng)
