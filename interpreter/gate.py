"""The gate: which gradients of this backward may be reduced inside the compiled graph.

A compiled backward hands out a slot of the bucket, to be filled by the reduction, instead of a
gradient. That is right only when nobody but AccumulateGrad takes it and nobody looks before the
reduction is done: the parameter has exactly one in-edge in the whole autograd graph, from a
compiled node; it has no user hooks and no `.grad` yet; its reducer is armed. Everything else goes
through hooks, parameter by parameter, over the same buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge

from sgplan.planner.torch_api import COMPILED_NODE

if TYPE_CHECKING:
    from sgplan.interpreter.bucket_buffer import Batch
    from sgplan.interpreter.reducer import Reducer

Root = torch.Tensor | GradientEdge


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """The reducer that takes a gradient over, and the parameter's index in it."""

    reducer: Reducer
    index: int


@dataclass(frozen=True, slots=True)
class Division:
    """Who takes which of the gradients that an op holds.

    Attributes:
        shares: reducer, its gradients as a batch, and where the op has them.
        rest: where the op has those that nobody takes.
    """

    shares: tuple[tuple[Reducer, Batch, tuple[int, ...]], ...]
    rest: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What one autograd node may hand over.

    Attributes:
        owners: place in `next_functions` -> owner.
        divisions: those that were worked out, by the places of their gradients.
    """

    owners: Mapping[int, Owner]
    divisions: dict[tuple[int, ...], Division] = field(
        default_factory=dict[tuple[int, ...], Division]
    )

    def divide(self, places: tuple[int, ...]) -> Division:
        """Work out who takes which of the gradients of these places."""
        held: dict[Reducer, list[tuple[int, int]]] = {}
        rest: list[int] = []
        for position, place in enumerate(places):
            owner = self.owners.get(place)
            if owner is None:
                rest.append(position)
            else:
                held.setdefault(owner.reducer, []).append((position, owner.index))
        shares = tuple(
            (reducer, reducer.batch([i for _, i in members]), tuple(p for p, _ in members))
            for reducer, members in held.items()
        )
        found = self.divisions[places] = Division(shares, tuple(rest))
        return found


# Whether this process has compiled graphs that ask; without any there is nothing to walk for.
asked = False
_KNOWN = 64  # openings remembered by a reducer: a graph's inputs may come and go
# The compiled nodes of the backward that runs now.
_open: dict[Any, Opening] = {}


def division_of(node: Any, places: Sequence[int]) -> Division | None:
    """Who takes which of the gradients that an op of the running node holds.

    Worked out once for each op. None outside an open gate.
    """
    opening = _open.get(node)
    if opening is None:
        return None
    key = tuple(places)
    return opening.divisions.get(key) or opening.divide(key)


class Opened:
    """The gate held open for one backward.

    Args:
        roots: the tensors or gradient edges `backward` was called on.
        reducers: those that take gradients over in it.
    """

    __slots__ = ("_before", "_now")

    def __init__(self, roots: Iterable[Root], reducers: Sequence[Reducer]) -> None:
        self._now = _openings(roots, reducers) if reducers else {}

    def __enter__(self) -> None:
        global _open
        self._before = _open
        _open = self._now

    def __exit__(self, *error: object) -> None:
        global _open
        _open = self._before


def _node_of(root: Root) -> Any:
    return root.grad_fn if isinstance(root, torch.Tensor) else root.node


def _openings(roots: Iterable[Root], reducers: Sequence[Reducer]) -> dict[Any, Opening]:
    """Walk the autograd graph once, down to the parameters of these reducers."""
    if len(reducers) == 1:
        owner_of, known = reducers[0].owner_of, reducers[0].openings
    else:
        owner_of, known = _owned_once(reducers), []
    openings: dict[Any, Opening] = {}
    edges: list[Mapping[int, Owner]] = []
    recalled = 0  # openings, each distinct in itself
    stack = [node for root in roots if (node := _node_of(root)) is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        after = node.next_functions
        compiled = type(node).__name__ == COMPILED_NODE
        if compiled and (opening := _recalled(after, known)) is not None:
            openings[node] = opening
            edges.append(opening.owners)
            recalled += 1
            continue
        owners: dict[int, Owner] = {}
        others = 0
        for place, (successor, _) in enumerate(after):
            if successor is None:
                continue
            owner = owner_of.get(successor)
            if owner is not None:
                owners[place] = owner
                continue
            others += 1
            if successor not in seen:
                seen.add(successor)
                stack.append(successor)
        if owners:
            edges.append(owners)
            if compiled:
                openings[node] = opening = Opening(owners)
                # Only leaves outlive the backward, so a key of nothing else may be kept.
                if not others and _distinct([owners]):
                    if len(known) >= _KNOWN:
                        known.clear()
                    known.append((after, opening))
    distinct = recalled == len(edges) == 1 or _distinct(edges)
    if distinct and all(reducer.all_free for reducer in reducers):
        return openings
    count = Counter(owner for owners in edges for owner in owners.values())
    return {node: Opening(_open_ones(o.owners, count)) for node, o in openings.items()}


def _recalled(after: Any, known: Iterable[tuple[Any, Opening]]) -> Opening | None:
    """The opening of these edges; others differ in the first, and to hash a hundred costs more."""
    for edges, opening in known:
        if edges == after:
            return opening
    return None


def _owned_once(reducers: Sequence[Reducer]) -> dict[Any, Owner]:
    """Owners of the parameters that only one of several reducers has; the others go by hooks."""
    count = Counter(node for reducer in reducers for node in reducer.owner_of)
    return {
        node: owner
        for reducer in reducers
        for node, owner in reducer.owner_of.items()
        if count[node] == 1
    }


def _distinct(edges: Iterable[Mapping[int, Owner]]) -> bool:
    """Whether every parameter has one edge only."""
    owners = [owner for each in edges for owner in each.values()]
    return len(set(owners)) == len(owners)


def _open_ones(owners: Mapping[int, Owner], edges: Mapping[Owner, int]) -> dict[int, Owner]:
    return {
        place: owner
        for place, owner in owners.items()
        if edges[owner] == 1 and owner.reducer.can_take(owner.index)
    }
