"""Scripts that are named and left alone."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from sgplan.interpreter import unsupported


class FullyShardedDataParallel(nn.Module):
    """Known by its name: torch's own needs a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module


def test_a_plain_model_is_supported() -> None:
    model = nn.Linear(2, 2)
    assert unsupported.named(model, list(model.parameters())) == ""


def test_fsdp_is_named_wherever_it_stands_in_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), FullyShardedDataParallel(nn.Linear(2, 2)))
    assert "FSDP" in unsupported.named(model, list(model.parameters()))


def test_deepspeed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", nn)
    assert "DeepSpeed" in unsupported.named(nn.Linear(2, 2), [])


def test_spawning_ranks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    calls: list[tuple[object, ...]] = []
    spawn = vars(torch.multiprocessing)["spawn"]

    def start(*arguments: object, **options: object) -> None:
        calls.append(arguments)

    # Both names are given back afterwards.
    monkeypatch.setitem(spawn.__globals__, "start_processes", start)
    monkeypatch.setattr(torch.multiprocessing, "start_processes", start)
    unsupported.watch_spawn(said.append)
    spawn(print, nprocs=1)
    assert len(calls) == 1
    assert "torchrun" in said[0]
