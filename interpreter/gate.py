"""The gate: which gradients of this backward may be reduced inside the compiled graph.

A compiled backward hands out a slot of the bucket, to be filled by the reduction, instead of a
gradient. That is right only when nobody but AccumulateGrad takes it and nobody looks before the
reduction is done: the parameter has exactly one in-edge in the whole autograd graph, from a
compiled node; it has no user hooks and no `.grad` yet; its reducer is armed. Everything else goes
through hooks, parameter by parameter, over the same buckets.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge

from sgplan.planner import torch_api

if TYPE_CHECKING:
    from sgplan.interpreter.reducer import Reducer

Root = torch.Tensor | GradientEdge


@dataclass(frozen=True, slots=True, eq=False)
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
def opened(roots: Iterable[Root], reducers: Sequence[Reducer]) -> Iterator[None]:
    """Hold the gate open for one backward.

    Args:
        roots: the tensors or gradient edges `backward` was called on.
        reducers: those that take gradients over in it.
    """
    global _open
    before = _open
    _open = _allowed(roots, reducers)
    try:
        yield
    finally:
        _open = before


def _node_of(root: Root) -> Any:
    return root.grad_fn if isinstance(root, torch.Tensor) else root.node


def _allowed(roots: Iterable[Root], reducers: Sequence[Reducer]) -> dict[Any, dict[int, Owner]]:
    """Walk the autograd graph once, down to the parameters of these reducers."""
    owner_of: Mapping[Any, Owner] = ChainMap(*[reducer.owner_of for reducer in reducers])
    if len(reducers) == 1:
        owner_of = reducers[0].owner_of
    allowed: dict[Any, dict[int, Owner]] = {}
    edges: Counter[Owner] = Counter()
    stack = [node for root in roots if (node := _node_of(root)) is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        after = node.next_functions
        owners = {p: owner for p, (n, _) in enumerate(after) if (owner := owner_of.get(n))}
        if owners:
            edges.update(owners.values())
            if torch_api.compiled_node(node):
                allowed[node] = owners
        if len(owners) < len(after):
            further = {n for n, _ in after if n is not None and n not in owner_of} - seen
            seen |= further
            stack += further
    if all(reducer.all_free for reducer in reducers) and edges.total() == len(edges):
        return allowed
    return {node: _open_ones(owners, edges) for node, owners in allowed.items()}


def _open_ones(owners: Mapping[int, Owner], edges: Counter[Owner]) -> dict[int, Owner]:
    return {
        place: owner
        for place, owner in owners.items()
        if edges[owner] == 1 and owner.reducer.can_take(owner.index)
    }
