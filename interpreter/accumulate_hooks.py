"""Hooks on AccumulateGrad nodes: told when a parameter's gradient has been accumulated.

Holds the nodes, because a node lives only as long as somebody holds it, and its listener weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from sgplan.planner import torch_api


class Listener(Protocol):
    """Who is told."""

    def accumulated(self, index: int) -> None:
        """AccumulateGrad of a parameter has run, with or without a gradient."""
        ...


class AccumulateHooks:
    """One hook on each parameter's node.

    Args:
        parameters: by index.
        listener: told the index.

    Attributes:
        nodes: of the parameters, by index.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], listener: Listener) -> None:
        self.nodes = [torch_api.grads_accumulator(p) for p in parameters]
        owner = weakref.ref(listener)
        self._handles = [node.register_hook(_hook(owner, i)) for i, node in enumerate(self.nodes)]

    def remove(self) -> None:
        """Nobody is told any more."""
        for handle in self._handles:
            handle.remove()
        self.nodes.clear()


def _hook(owner: weakref.ref[Listener], index: int) -> Callable[[Any, Any], None]:
    def fire(grad_inputs: Any, grad_outputs: Any) -> None:
        if (listener := owner()) is not None:
            listener.accumulated(index)

    return fire
