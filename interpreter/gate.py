"""The gate: which gradients of this backward may be reduced inside the compiled graph.

A compiled backward hands out a slot of the bucket, to be filled by the reduction, instead of a
gradient. That is right only when nobody but AccumulateGrad takes it and nobody looks before the
reduction is done: the parameter has exactly one in-edge in the whole autograd graph, from a
compiled node; it has no user hooks and no `.grad` yet; its reducer is armed. Everything else goes
through hooks, parameter by parameter, over the same buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge

from sgplan.planner import torch_api

if TYPE_CHECKING:
    from sgplan.interpreter.reducer import Reducer

Root = torch.Tensor | GradientEdge


@dataclass(frozen=True, slots=True)
class Owner:
    """The reducer that takes a gradient over, and the parameter's index in it."""

    reducer: Reducer
    index: int


# Whether this process has compiled graphs that ask; without any there is nothing to walk for.
asked = False
_NOBODY: Mapping[int, Owner] = {}
# One entry per compiled node of the backward that runs now: place in `next_functions` -> owner.
_open: dict[Any, dict[int, Owner]] = {}


def owners_of(node: Any) -> Mapping[int, Owner]:
    """Who takes over gradients of the running node; nobody outside an open gate."""
    return _open.get(node, _NOBODY)


@contextmanager
def opened(roots: Iterable[Root], owner_of: Mapping[int, Owner]) -> Iterator[None]:
    """Hold the gate open for one backward.

    Args:
        roots: the tensors or gradient edges `backward` was called on.
        owner_of: `id(parameter)` -> owner, for the parameters that could be taken over.
    """
    global _open
    before = _open
    _open = _allowed(roots, owner_of)
    try:
        yield
    finally:
        _open = before


def _node_of(root: Root) -> Any:
    return root.grad_fn if isinstance(root, torch.Tensor) else root.node


def _allowed(roots: Iterable[Root], owner_of: Mapping[int, Owner]) -> dict[Any, dict[int, Owner]]:
    """Walk the autograd graph once; 25 us for a model in one compiled node."""
    edges: dict[Any, list[tuple[Any, int]]] = {}
    stack = [node for root in roots if (node := _node_of(root)) is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        for place, (after, _) in enumerate(node.next_functions):
            if after is None:
                continue
            if type(after).__name__ == "AccumulateGrad":
                edges.setdefault(after, []).append((node, place))
            elif after not in seen:
                seen.add(after)
                stack.append(after)
    allowed: dict[Any, dict[int, Owner]] = {}
    for leaf, into in edges.items():
        owner = owner_of.get(id(leaf.variable))
        if owner is not None and len(into) == 1 and torch_api.compiled_node(into[0][0]):
            allowed.setdefault(into[0][0], {})[into[0][1]] = owner
    return allowed
