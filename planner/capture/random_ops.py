"""Which nodes of a graph draw random numbers, and dropout with its draw apart from its product."""

from __future__ import annotations

import operator

import torch
import torch.fx as fx

from sgplan.planner.capture.schema import arguments

_SWITCHES = ("train", "training")


def draws(node: fx.Node) -> bool:
    """Whether a node advances a generator: torch's tag says it of the op.

    Arguments say it of the call: attention is tagged and draws only with a `dropout_p`; dropout
    and rrelu draw only while they train.
    """
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    given = arguments(node)
    off = any(given.get(switch) is False for switch in _SWITCHES)
    return not off and given.get("dropout_p") != 0.0


def open_dropouts(graph: fx.Graph) -> None:
    """Let dropout's result be a product with its mask, so that only the mask need be saved.

    `native_dropout` draws and multiplies in one op, which stays in the forward as a whole. The
    product is spelled as the op computes it: by the mask, then by the scale.
    """
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.native_dropout.default or not draws(node):
            continue
        x, p = node.args[:2]
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        if 0 not in parts or not isinstance(p, float) or not 0 < p < 1:
            continue
        result = parts.pop(0)
        with graph.inserting_before(node.next):
            mask = graph.call_function(operator.getitem, (node, 1))
            kept = graph.call_function(torch.ops.aten.mul.Tensor, (x, mask))
            scaled = graph.call_function(torch.ops.aten.mul.Tensor, (kept, 1 / (1 - p)))
        mask.meta = dict(result.meta) | {"val": node.meta["val"][1]}
        for made in (kept, scaled):
            made.meta = dict(result.meta)
        for old, new in ((result, scaled), *((part, mask) for part in parts.values())):
            old.replace_all_uses_with(new)
            graph.erase_node(old)
