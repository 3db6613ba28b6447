"""`torch.autograd.backward` under the plan: the gate is opened around it, plan mode ends at it.

`torch.autograd.grad` is never patched, so what it computes is never reduced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sgplan.interpreter import gate
from sgplan.interpreter.rank import Rank


def install(rank: Rank, planned: Callable[[], None] | None) -> None:
    """Patch `torch.autograd.backward`, through which `Tensor.backward` goes.

    Args:
        planned: in plan mode, called instead of the first backward of a root; does not return.
    """
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(
        tensors: gate.Root | Sequence[gate.Root],
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> None:
        if planned is not None and any(root.called for root in rank.roots):
            planned()
        # A generator can be read only once; a gradient edge is a tuple, and one root all the same.
        listed: Any = (tensors,) if isinstance(tensors, gate.Root) else tuple(tensors)
        with rank.backward(listed, plain=inputs is None and not create_graph):
            original(listed, grad_tensors, retain_graph, create_graph, grad_variables, inputs)

    torch.autograd.backward = backward
