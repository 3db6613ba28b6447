"""How a plain script leaves its result for a test: one JSON file a rank and case."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


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
    mine = [None if p.grad is None else p.grad.tolist() for p in module.parameters()]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return all(other == mine for other in everyone)


def numbers(step: int, *shape: int) -> torch.Tensor:
    """Inputs that differ between ranks and steps."""
    rank = int(os.environ.get("RANK", "0"))
    rng = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(*shape, generator=rng)
