"""Scripts that sgplan names and leaves alone: FSDP, DeepSpeed, `mp.spawn`, tensor parallel.

Looks at what the script really uses: its models and their parameters, the modules it has loaded,
the calls it makes. Such a script runs as if there were no plan, never half attached.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def named(module: nn.Module, parameters: Iterable[Any]) -> str:
    """What a model says of its script; empty when nothing stands against a plan."""
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        return "the script shards its model with FSDP"
    if any(type(parameter.data).__name__ == "DTensor" for parameter in parameters):
        return "the script's parameters are DTensors (fully_shard or tensor parallel)"
    if "deepspeed" in sys.modules:
        return "the script trains with DeepSpeed"
    return ""


def watch_spawn(say: Callable[[str], None]) -> None:
    """Name a script that starts its own ranks: they do not come from a launcher."""
    # Imported for the module: the package's attribute `spawn` is the function of that name.
    package: Any = torch.multiprocessing
    module: Any = sys.modules["torch.multiprocessing.spawn"]
    original = module.start_processes

    @functools.wraps(original)
    def start_processes(*args: Any, **kwargs: Any) -> Any:
        say("the script starts its ranks itself with `mp.spawn`: start them with torchrun")
        return original(*args, **kwargs)

    package.start_processes = start_processes
    module.start_processes = start_processes
