"""Inputs of a root whose parameters the plan stores in 16 bits: cast where the root is entered.

A hook of the module, so that it also stands in a captured graph, in evaluation, and in a copy that
the script makes of the model. Knows nothing of what the model does with them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from sgplan.planner import torch_api


# Both are written without inner functions: those would keep a file that Dynamo skips.
@torch_api.traced
def lower(dtype: torch.dtype, value: Any) -> Any:
    """A value with its float32 tensors in `dtype`; looks into tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype is torch.float32 else value
    if type(value) is dict:
        named: dict[Any, Any] = {}
        for name, inner in value.items():
            named[name] = lower(dtype, inner)
        return named
    if isinstance(value, (list, tuple)):
        found: list[Any] = []
        for inner in value:
            found.append(lower(dtype, inner))
        if hasattr(value, "_fields"):
            return type(value)(*found)
        return tuple(found) if isinstance(value, tuple) else found
    return value


@torch_api.traced
def lower_inputs(
    dtype: torch.dtype, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """A forward pre-hook: what a call is given, in `dtype`."""
    return lower(dtype, args), lower(dtype, kwargs)


def cast_inputs(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast what every later call of a module is given, behind the hooks that it has."""
    module.register_forward_pre_hook(functools.partial(lower_inputs, dtype), with_kwargs=True)
