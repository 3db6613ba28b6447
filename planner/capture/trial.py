"""Whether an op runs in a number format: it is run once, forward and backward, on tensors of ones.

Tracing asks for shapes only; that a device has no kernel for a format is known when the op runs.
What also fails in the formats of the script says nothing of another one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from sgplan.planner import torch_api

# One answer holds for the process: what was asked -> the objection.
_answers: dict[object, str] = {}


def objection(op: Callable[..., Any], name: str, plain: Any, changed: Any) -> str:
    """Why an op runs with some arguments and not with others, in torch's words; empty if it does.

    Args:
        op: called with (args, kwargs).
        name: of it; ops of one name are taken for one.
        plain, changed: (args, kwargs) with fake tensors; they differ in dtypes only.
    """
    asked = name, _kinds(plain), _kinds(changed)
    if asked not in _answers:
        why = _failure(op, changed)
        _answers[asked] = why if why and not _failure(op, plain) else ""
    return _answers[asked]


def _kinds(given: Any) -> tuple[str, ...]:
    return tuple(
        f"{leaf.device.type} {leaf.dtype} {leaf.dim()}"
        if isinstance(leaf, torch.Tensor)
        else str(leaf)
        for leaf in pytree.tree_leaves(given)
    )


def _failure(op: Callable[..., Any], given: Any) -> str:
    devices = {x.device for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)}
    seeded = [device for device in devices if device.type == "cuda"]
    with (
        torch_api.real_tensors(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(seeded),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            args, kwargs = pytree.tree_map(_real, given)
            results = [r for r in pytree.tree_leaves(op(*args, **kwargs)) if _follows(r)]
            leaves = [x for x in pytree.tree_leaves((args, kwargs)) if _follows(x)]
            # Not `backward`, which under a plan is one of the script.
            if results:
                ones = [torch.ones_like(result) for result in results]
                torch.autograd.grad(results, leaves, ones, allow_unused=True)
        except Exception as error:  # whatever torch says of it
            return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def _follows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _real(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        size = [torch_api.size_hint(each) for each in value.shape]
        continuous = value.is_floating_point() or value.is_complex()
        # Indices and lengths must fit whatever they are of.
        made = torch.full(size, int(continuous), dtype=value.dtype, device=value.device)
        return made.requires_grad_(continuous).view_as(made)
    return torch_api.size_hint(value) if isinstance(value, torch.SymInt) else value
