"""Tensors with a fence: who reads past their end gets NaN, who writes there is found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FENCE = 8192  # elements before and behind: as many as a block can be off
_NEW = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.zeros,
    torch.zeros_like,
    torch.ones_like,
    torch.full,
    torch.full_like,
    torch.Tensor.new_empty,
    torch.Tensor.new_zeros,
}
_UNSET = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}


class Fences(TorchFunctionMode):
    """While it is entered every new tensor gets a fence, and holds NaN until it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._fenced: list[tuple[torch.Tensor, torch.Tensor, str]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _NEW or not isinstance(made, torch.Tensor):
            return made
        return self.fenced(made, "a tensor of its own", unset=func in _UNSET)

    def fenced(self, tensor: torch.Tensor, what: str, *, unset: bool = False) -> torch.Tensor:
        """A copy between two fences.

        Args:
            what: it is, for people.
            unset: its values say nothing.
        """
        extent = span(tensor.shape, tensor.stride())
        flat = torch.empty(extent + 2 * FENCE, dtype=tensor.dtype, device=tensor.device)
        flat.fill_(_poison(tensor.dtype))
        inside = flat.as_strided(tensor.shape, tensor.stride(), FENCE)
        if not unset and extent:
            first = tensor.storage_offset()
            flat[FENCE : FENCE + extent] = tensor.as_strided((extent,), (1,), first)
        self._fenced.append((flat, flat.clone(), what))
        return inside

    def broken(self, outputs: Sequence[torch.Tensor]) -> str:
        """What was written where it may not be; empty when nothing was."""
        for flat, _, what in self._fenced:
            edges = torch.cat([flat[:FENCE], flat[-FENCE:]])
            if not _untouched(edges):
                return f"it writes outside of {what}"
        for flat, before, what in self._fenced:
            given = what != "a tensor of its own"
            if given and not _same(flat, before):
                return f"it changes {what}"
            memory = flat.untyped_storage().data_ptr()
            if given and any(memory == o.untyped_storage().data_ptr() for o in outputs):
                return f"it returns {what} itself"
        return ""


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first to the last of a tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _poison(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def _untouched(edges: torch.Tensor) -> bool:
    poison = edges.isnan() if edges.is_floating_point() else edges == _poison(edges.dtype)
    return bool(poison.all())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    equal = one == other
    return bool((equal | (one.isnan() & other.isnan()) if one.is_floating_point() else equal).all())
