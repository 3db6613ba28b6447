"""What a device moves in a second, what a kernel and a product cost: measured once, then kept.

The file lies beside Inductor's cache, one for each device and torch version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import torch

from sgplan.planner.capture.sites import DeviceProfile

_NUMEL = 1 << 22  # 16 MiB of float32, beyond the caches of a core
_SIDE = 384
_REPEATS = 7
_LAUNCHES = 200


def device_profile(device: str, folder: Path) -> DeviceProfile:
    """The kept figures, measured now when there are none that can be read."""
    path = folder / f"profile-{device}-{torch.__version__}.json"
    try:
        return DeviceProfile(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        found = measured(device)
    _keep(path, asdict(found))
    return found


def measured(device: str) -> DeviceProfile:
    """Best of a few runs; takes about 0.1 s."""
    source, target = (torch.ones(_NUMEL, device=device) for _ in range(2))
    one = torch.ones(1, device=device)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    copying = _best(lambda: target.copy_(source), synchronize)
    launching = _best(lambda: [one.add_(1) for _ in range(_LAUNCHES)], synchronize)
    return DeviceProfile(2 * source.nbytes / copying, launching / _LAUNCHES)


def matmul_seconds(device: str, dtype: str, folder: Path) -> float:
    """How long a product of two square matrices takes, kept like the profile.

    Args:
        dtype: `float32`, `bfloat16` or `float16`.
    """
    path = folder / f"matmul-{device}-{dtype}-{torch.__version__}.json"
    try:
        return float(json.loads(path.read_text())["seconds"])
    except (OSError, ValueError, TypeError, KeyError):
        found = _multiplied(device, getattr(torch, dtype))
    _keep(path, {"seconds": found})
    return found


def _multiplied(device: str, dtype: torch.dtype) -> float:
    """Takes a few ms."""
    one = torch.ones(_SIDE, _SIDE, device=device, dtype=dtype)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    return _best(lambda: one @ one, synchronize)


def _keep(path: Path, figures: dict[str, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(figures))
    partial.replace(path)


def _best(work: Callable[[], object], synchronize: Callable[[], object]) -> float:
    seconds: list[float] = []
    for _ in range(_REPEATS):
        began = perf_counter()
        work()
        synchronize()
        seconds.append(perf_counter() - began)
    return min(seconds)
