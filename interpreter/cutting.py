"""Added rows are taken off what leaves a graph, before the code around the graph sees it.

Cutting there, and not at the end of the call, reaches all that the call makes: what it returns in
any form, and what it stores. Knows what the proof found (`planner/capture/rows.py`); knows nothing
of guards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sgplan.planner.capture.rows import NotProved, Outcome, Rows


@dataclass(frozen=True, slots=True)
class Cut:
    """Takes rows off the outputs of a graph.

    Attributes:
        outcome: of the proof for the call.
        size: rows of the script.
        target: rows with the added ones.
    """

    outcome: Outcome
    size: int
    target: int

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Raises NotProved: these are not the outputs of the graph that the proof is for."""
        found = self.outcome.outputs
        if [shape for shape, _ in found] != [tuple(tensor.shape) for tensor in tensors]:
            raise NotProved("the graph that ran is not the one of the proof")
        return [
            tensor if rows is None else self._one(tensor, rows)
            for tensor, (_, rows) in zip(tensors, found, strict=True)
        ]

    def _one(self, tensor: torch.Tensor, rows: Rows) -> torch.Tensor:
        # The graph, not the code around it, decides what has a gradient.
        with torch.set_grad_enabled(tensor.requires_grad):
            if rows.outer == 1:
                kept = tensor.narrow(rows.dim, 0, self.size * rows.inner)
            else:
                parts = tensor.unflatten(rows.dim, (rows.outer, self.target, rows.inner))
                few = math.prod((rows.outer, self.size, rows.inner))
                shape = [few if dim == rows.dim else n for dim, n in enumerate(tensor.shape)]
                kept = parts.narrow(rows.dim + 1, 0, self.size).reshape(shape)
            # The script may rely on strides that a call without added rows gives.
            return kept.clone() if _is_dense(tensor) and not _is_dense(kept) else kept


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class Cutting:
    """The cuts of the call that runs now.

    Args:
        pads: whether any call can have some.
    """

    def __init__(self, pads: bool) -> None:
        self._pads = pads
        self._cuts: Sequence[Cut] = ()
        self._ran = 0

    def watched(self, graph: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled graph whose outputs are cut while cuts are set."""
        if not self._pads:
            return graph

        def call(*given: Any) -> Any:
            made = graph(*given)
            return self._cut(made) if self._cuts else made

        return call

    def _cut(self, made: Sequence[Any]) -> Sequence[Any]:
        self._ran += 1
        places = [n for n, value in enumerate(made) if isinstance(value, torch.Tensor)]
        tensors = [made[place] for place in places]
        for cut in reversed(self._cuts):
            tensors = cut(tensors)
        result = list(made)
        for place, tensor in zip(places, tensors, strict=True):
            result[place] = tensor
        return type(made)(result)  # pyright: ignore[reportCallIssue]

    @contextmanager
    def by(self, cuts: Sequence[Cut]) -> Iterator[None]:
        """Around a call whose inputs were enlarged, in this order.

        Raises:
            NotProved: the call was not one graph.
        """
        before, ran = self._cuts, self._ran
        self._cuts, self._ran = cuts, 0
        try:
            yield
            if self._ran != 1:
                raise NotProved(f"the call ran {self._ran} graphs, and the proof is for one")
        finally:
            self._cuts, self._ran = before, ran
