"""The arguments of an op's call by the names of its schema."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx


def arguments(node: fx.Node) -> dict[str, Any]:
    """Of a call of an `OpOverload`: what it is given, defaults where it is given nothing."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    schema = op._schema.arguments
    found = {a.name: a.default_value for a in schema if a.has_default_value()}
    found.update(zip((a.name for a in schema), node.args, strict=False))
    return {**found, **node.kwargs}
