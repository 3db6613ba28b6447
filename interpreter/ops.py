"""The op that stands in compiled backward graphs, `sgplan.ready`, and what it does at run time.

Registered when this module is imported, before any compile cache is read: a cached graph that names
an unregistered op fails at its load. The op knows nothing of buckets; it asks the gate which of its
gradients a reducer takes over, and copies the others, because Inductor reuses a gradient's memory
as soon as the op has returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch
from torch import library

from sgplan.interpreter import gate
from sgplan.planner import torch_api

_FLEXIBLE = (torch.Tag.flexible_layout,)  # no copy to force a layout on the gradients
_LIBRARY = library.Library("sgplan", "DEF")
_LIBRARY.define("ready(Tensor[] grads, int[] inputs, int[] strides) -> Tensor[]", tags=_FLEXIBLE)


def _ready(
    grads: Sequence[torch.Tensor], inputs: Sequence[int], strides: Sequence[int]
) -> list[torch.Tensor]:
    """Give each gradient to its reducer, or return a copy of it.

    Args:
        grads: gradients of parameters, final in this graph.
        inputs: the parameters' places in the running node's `next_functions`.
        strides: the parameters' strides, one after the other.
    """
    began = perf_counter()
    division = gate.division_of(torch_api.running_node(), inputs)
    if division is None:
        return list(map(_copied, grads, _split(grads, strides)))
    if len(division.shares) == 1 and not division.rest:
        ((reducer, batch, _),) = division.shares
        return reducer.take(batch, grads, began)
    slots = list(grads)
    for reducer, batch, positions in division.shares:
        given = [grads[position] for position in positions]
        views = reducer.take(batch, given, began)
        for position, view in zip(positions, views, strict=True):
            slots[position] = view
        began = perf_counter()
    layouts = list(_split(grads, strides)) if division.rest else []
    for position in division.rest:
        slots[position] = _copied(grads[position], layouts[position])
    return slots


def _split(grads: Sequence[torch.Tensor], strides: Sequence[int]) -> Iterator[Sequence[int]]:
    """The strides of each gradient's parameter."""
    first = 0
    for grad in grads:
        yield strides[first : first + grad.dim()]
        first += grad.dim()


def _copied(grad: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    copy = torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device)
    return copy.copy_(grad)


def _ready_meta(
    grads: Sequence[torch.Tensor], inputs: Sequence[int], strides: Sequence[int]
) -> list[torch.Tensor]:
    return [
        torch.empty_strided(grad.shape, layout, dtype=grad.dtype, device=grad.device)
        for grad, layout in zip(grads, _split(grads, strides), strict=True)
    ]


_LIBRARY.impl("ready", _ready, "CPU")
_LIBRARY.impl("ready", _ready, "CUDA")
library.register_fake("sgplan::ready", _ready_meta, lib=_LIBRARY)
