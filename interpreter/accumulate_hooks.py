"""Hooks on AccumulateGrad nodes: note which parameters' gradients have been accumulated.

A hook runs for every parameter in every backward, with cold caches. So it notes its parameter and
no more, and wakes its listener only where that can change something: for parameters that the
listener names, and when as many have come as it waits for.

Holds the nodes, because a node lives only as long as somebody holds it, and its listener weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from sgplan.planner import torch_api


class Listener(Protocol):
    """Who is woken."""

    def woken(self) -> None:
        """Gradients have been accumulated, or are known to be none: look at `arrived`."""
        ...


class AccumulateHooks:
    """One hook on each parameter's node.

    Args:
        parameters: by index.
        listener: woken at first by every parameter.

    Attributes:
        nodes: of the parameters, by index.
        arrived: indices in the order in which they came; the listener clears it.
        wakes: indices that wake the listener.
        due: how many in `arrived` wake it, whichever they are.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], listener: Listener) -> None:
        self.nodes = [torch_api.grads_accumulator(p) for p in parameters]
        self.arrived: list[int] = []
        self.wakes: set[int] = set(range(len(parameters)))
        self._due = [len(parameters)]  # shared with the hooks, which hold nothing of ours
        owner = weakref.ref(listener)
        self._handles = [
            node.register_hook(_hook(owner, index, self.arrived, self.wakes, self._due))
            for index, node in enumerate(self.nodes)
        ]

    @property
    def due(self) -> int:
        return self._due[0]

    @due.setter
    def due(self, count: int) -> None:
        self._due[0] = count

    def remove(self) -> None:
        """Nobody is told any more."""
        for handle in self._handles:
            handle.remove()
        self.nodes.clear()


def _hook(
    owner: weakref.ref[Listener],
    index: int,
    arrived: list[int],
    wakes: set[int],
    due: list[int],
) -> Callable[[Any, Any], None]:
    note = arrived.append

    def fire(grad_inputs: Any, grad_outputs: Any) -> None:
        note(index)
        if (index in wakes or len(arrived) >= due[0]) and (listener := owner()) is not None:
            listener.woken()

    return fire
