"""What a node costs: floating-point operations, bytes moved, bytes kept for the backward.

Counted from shapes alone, as if nothing were fused. Symbolic sizes count with the value they were
captured with.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx as fx
from torch.utils import _pytree as pytree

from sgplan.planner import torch_api
from sgplan.planner.families import families_of, is_layout


def flops(node: fx.Node) -> int:
    """Multiply and add count as two; without a formula an op costs one per element it computes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return 0
    formula = torch_api.flop_formula(target.overloadpacket)
    if formula is not None:
        args, kwargs = pytree.tree_map(_as_meta, (node.args, node.kwargs))
        return int(formula(*args, **kwargs, out_val=_as_meta(node)))
    if _aliases(target) or is_layout(str(target)):
        return 0
    if "reduction" in families_of(str(target)):
        return sum(numel(value) for value in _read(node))
    return sum(numel(value) for value in _tensors(node))


def bytes_moved(node: fx.Node) -> int:
    """Bytes of the tensors read plus those written; a view moves none."""
    if is_view(node):
        return 0
    return sum(map(nbytes, (*_read(node), *_tensors(node))))


def bytes_saved(graph: fx.GraphModule) -> int:
    """Bytes of activations a forward graph keeps: inputs and parameters live anyway, and views
    of one value count once."""
    return sum(saved_results(graph).values())


def saved_results(graph: fx.GraphModule) -> dict[fx.Node, int]:
    """The ops of a forward graph whose results are kept for the backward, and their bytes."""
    _, kinds = torch_api.descriptors(graph)
    values = graph.graph.output_node().args[0]
    assert isinstance(values, (list, tuple))
    kept = {
        _result(value)
        for value, kind in zip(values, kinds, strict=True)
        if torch_api.is_saved(kind) and isinstance(value, fx.Node)
    }
    return {node: sum(map(nbytes, _tensors(node))) for node in kept if node.op == "call_function"}


def numel(value: torch.Tensor) -> int:
    count = 1
    for size in value.shape:
        count *= torch_api.size_hint(size)
    return count


def nbytes(value: torch.Tensor) -> int:
    return numel(value) * value.element_size()


def memory_owner(node: fx.Node) -> fx.Node:
    """The op that made the memory, behind views and `getitem`s."""
    while (is_view(node) or node.target is operator.getitem) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _result(node: fx.Node) -> fx.Node:
    """As `memory_owner`, but one result of an op with several stands for itself."""
    while is_view(node):
        node = node.all_input_nodes[0]
    if node.target is operator.getitem and is_view(node.all_input_nodes[0]):
        return _result(node.all_input_nodes[0])
    return node


def is_view(node: fx.Node) -> bool:
    """Whether a node looks at memory that another has made."""
    return isinstance(node.target, torch._ops.OpOverload) and _aliases(node.target)


def _aliases(target: torch._ops.OpOverload) -> bool:
    """Whether the op returns a view of an argument without writing to it."""
    returns = target._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def _read(node: fx.Node) -> Iterable[torch.Tensor]:
    return (value for source in node.all_input_nodes for value in _tensors(source))


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """The tensors a node stands for; a list for ops with several results."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return [value for value in leaves if isinstance(value, torch.Tensor)]


def _as_meta(value: Any) -> Any:
    """A node as an empty tensor with plain sizes, as the formulas want it."""
    if isinstance(value, fx.Node):
        return pytree.tree_map(_as_meta, value.meta.get("val"))
    if isinstance(value, torch.Tensor):
        shape = [torch_api.size_hint(size) for size in value.shape]
        return torch.empty(shape, dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymInt):
        return torch_api.size_hint(value)
    return value
