"""Split the bias off a product: `bias` as a step of a pattern is the addition alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner.capture.groups import OpGroup
from sgplan.planner.capture.sites import Site

_ADDMM, _CONV = torch.ops.aten.addmm.default, torch.ops.aten.convolution.default
_VIEWS = tuple(getattr(torch.ops.aten, n).default for n in ("view", "_unsafe_view", "reshape"))


@dataclass(frozen=True, slots=True)
class Split:
    """A product without its bias.

    Attributes:
        node: what was split, erased from the graph.
        product, added: what stands there now.
        instead: of nodes that are gone -> of their values.
    """

    node: fx.Node
    product: fx.Node
    added: fx.Node
    instead: dict[fx.Node, fx.Node]


def claims_bias(site: Site) -> bool:
    """Whether the first step of a site's pattern is a bias."""
    first = site.rule.pattern.steps[0]
    return any(s.op == "bias" for s in first) and "bias" in site.groups[0].families


def split_bias(graph: fx.Graph, group: OpGroup) -> Split | None:
    """Make the op of a group the addition of its bias alone; None where that cannot be done."""
    node = next((n for n in group.nodes if n.target in (_ADDMM, _CONV)), None)
    if node is None or node.kwargs or (back := _sizes(node.meta["val"])) is None:
        return None
    split = _split(graph, node, back)
    group.nodes[group.nodes.index(node)] = split.added
    return split


def _split(graph: fx.Graph, node: fx.Node, back: Sequence[int]) -> Split:
    """`addmm(b, x, w)` as `mm(x, w) + b`; a convolution likewise.

    Where the product is looked at in another shape the addition has that shape, and so the loops
    of the op that reads it.

    Args:
        back: sizes that bring the addition into the product's own shape.
    """
    shaped = [n for n in node.users if n.target in _VIEWS and _keeps_last_dim(n, node)]
    first = next(n for n in graph.nodes if n in node.users) if node.users else node
    if shaped and shaped[0] is not first:
        shaped = []
    value = (shaped[0] if shaped else node).meta["val"]
    with graph.inserting_before(shaped[0] if shaped else node):
        if node.target is _ADDMM:
            bias, x, w = node.args
            made = graph.call_function(torch.ops.aten.mm.default, (x, w))
        else:
            x, w, bias, *rest = node.args
            made = graph.call_function(_CONV, (x, w, None, *rest))
            wide = [1, -1, *[1] * (node.meta["val"].dim() - 2)]
            bias = _viewed(graph, bias, wide)
        product = _like(made, node)
        if shaped:
            product = _viewed(graph, product, shaped[0].args[1], value)
        added = _like(graph.call_function(torch.ops.aten.add.Tensor, (product, bias)), node, value)
        flat = _viewed(graph, added, back, node.meta["val"]) if shaped else added
    instead = {node: flat}
    for view in shaped:
        if view.meta["val"].shape == value.shape:
            instead[view] = added
            view.replace_all_uses_with(added)
            graph.erase_node(view)
    node.replace_all_uses_with(flat)
    graph.erase_node(node)
    return Split(node, made, added, instead)


def _sizes(value: torch.Tensor) -> list[int] | None:
    """Sizes of a shape for a graph; None where more than one is not known before it runs."""
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    return None if sizes.count(-1) > 1 else sizes


def _keeps_last_dim(view: fx.Node, node: fx.Node) -> bool:
    return bool(view.meta["val"].shape[-1:] == node.meta["val"].shape[-1:])


def _like(made: fx.Node, node: fx.Node, value: torch.Tensor | None = None) -> fx.Node:
    """Give a new node the marks of the one that it stands for."""
    made.meta.update(node.meta)
    made.meta["val"] = node.meta["val"] if value is None else value
    return made


def _viewed(graph: fx.Graph, node: Any, sizes: Any, value: torch.Tensor | None = None) -> fx.Node:
    """The node in another shape.

    Args:
        value: in that shape, where `sizes` are nodes.
    """
    view = graph.call_function(torch.ops.aten.reshape.default, (node, sizes))
    view.meta["val"] = node.meta["val"].view(sizes) if value is None else value
    return view
