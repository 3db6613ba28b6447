"""The op that stands in compiled backward graphs, `sgplan.ready`, and what it does at run time.

Registered when this module is imported, before any compile cache is read: a cached graph that names
an unregistered op fails at its load. The op knows nothing of buckets; it asks the gate which of its
gradients a reducer takes over, and copies the others, because Inductor reuses a gradient's memory
as soon as the op has returned.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.library import Library, register_fake

from sgplan.interpreter import gate
from sgplan.interpreter.reducer import Reducer
from sgplan.planner import torch_api

_FLEXIBLE = (torch.Tag.flexible_layout,)  # no copy to force a layout on the gradients
_LIBRARY = Library("sgplan", "DEF")
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
    owners = gate.owners_of(torch_api.running_node())
    slots = list(grads)
    taken: dict[Reducer, list[tuple[int, int]]] = {}
    first = 0
    for position, (grad, place) in enumerate(zip(grads, inputs, strict=True)):
        owner = owners.get(place)
        if owner is None:
            slots[position] = _copied(grad, strides[first : first + grad.dim()])
        else:
            taken.setdefault(owner.reducer, []).append((position, owner.index))
        first += grad.dim()
    for reducer, members in taken.items():
        indices = [index for _, index in members]
        views = reducer.take(indices, [grads[position] for position, _ in members])
        for (position, _), view in zip(members, views, strict=True):
            slots[position] = view
    return slots


def _copied(grad: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    copy = torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device)
    return copy.copy_(grad)


def _ready_meta(
    grads: Sequence[torch.Tensor], inputs: Sequence[int], strides: Sequence[int]
) -> list[torch.Tensor]:
    slots: list[torch.Tensor] = []
    first = 0
    for grad in grads:
        layout = strides[first : first + grad.dim()]
        slots.append(torch.empty_strided(grad.shape, layout, dtype=grad.dtype, device=grad.device))
        first += grad.dim()
    return slots


_LIBRARY.impl("ready", _ready, "CPU")
_LIBRARY.impl("ready", _ready, "CUDA")
register_fake("sgplan::ready", _ready_meta, lib=_LIBRARY)
