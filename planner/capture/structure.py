"""A canonical hash of a graph's structure, stable across processes and hash seeds.

Nodes by place instead of name, targets by qualified name, values by dtype, shape and device type,
small constants by content and large ones by dtype and shape. Two ranks that captured the same
computation get the same digest; with sizes erased, so do two lengths of the same input.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

import torch
import torch.fx as fx
from torch.utils import _pytree as pytree

Shapes = Literal["kept", "erased"]

# Constants up to this many elements are part of the structure, larger ones are data.
SMALL = 64
ERASED = "?"
_SIZE = re.compile(r"SymInt[\[\]?\d]* (\w+)")


def structural_digest(graph: fx.GraphModule, shapes: Shapes = "kept") -> str:
    """SHA-256 over the canonical lines of the graph (hex)."""
    return hashlib.sha256("\n".join(_lines(graph, shapes)).encode()).hexdigest()


def _lines(graph: fx.GraphModule, shapes: Shapes) -> Iterator[str]:
    place = {node: index for index, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        if node.op == "output":
            yield f"output {_argument(node.args, place, shapes)}"
            continue
        arguments = " ".join(_arguments(node, place, shapes))
        value = _value(node.meta.get("val"), shapes)
        yield f"{node.op} {_target(graph, node, shapes)} {arguments} : {value}"


def _target(graph: fx.GraphModule, node: fx.Node, shapes: Shapes) -> str:
    """Names of placeholders and attributes do not count; an attribute counts by its content."""
    if node.op == "placeholder":
        return ""
    if node.op == "get_attr":
        return _constant(_attribute(graph, str(node.target)), shapes)
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return f"{target._schema.name}.{target._overloadname}"
    return getattr(target, "__name__", str(target))


def _attribute(graph: fx.GraphModule, path: str) -> Any:
    found: Any = graph
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _constant(value: Any, shapes: Shapes) -> str:
    if isinstance(value, fx.GraphModule):
        return structural_digest(value, shapes)
    if not isinstance(value, torch.Tensor):
        return type(value).__qualname__
    if value.numel() > SMALL or shapes == "erased" or value.is_meta:
        return _value(value, shapes)
    return f"{_value(value, shapes)}={value.detach().cpu().tolist()}"


def _arguments(node: fx.Node, place: Mapping[fx.Node, int], shapes: Shapes) -> Iterator[str]:
    schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
    names = [a.name for a in schema.arguments] if schema else []
    erased = _sizes_of(str(schema)) if schema and shapes == "erased" else frozenset()
    for index, argument in enumerate(node.args):
        is_size = index < len(names) and names[index] in erased
        yield ERASED if is_size else _argument(argument, place, shapes)
    for name in sorted(node.kwargs):
        text = ERASED if name in erased else _argument(node.kwargs[name], place, shapes)
        yield f"{name}={text}"


@cache
def _sizes_of(schema: str) -> frozenset[str]:
    """Arguments that are sizes: `SymInt` in a schema, where dims are `int`.

    Read from the text, because the schema's type objects show both as `int`.
    """
    return frozenset(_SIZE.findall(schema))


def _argument(value: Any, place: Mapping[fx.Node, int], shapes: Shapes) -> str:
    if isinstance(value, fx.Node):
        return f"%{place[value]}"
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(_argument(item, place, shapes) for item in value)}]"
    if isinstance(value, Mapping):
        items = sorted((str(key), _argument(item, place, shapes)) for key, item in value.items())
        return f"{{{' '.join(f'{key}={item}' for key, item in items)}}}"
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, (int, float, complex, bool, torch.dtype, torch.layout, type(None))):
        return repr(value)
    # Strings name process groups and kernels, both made at run time; other objects have no
    # stable text at all.
    return type(value).__qualname__


def _value(value: Any, shapes: Shapes) -> str:
    leaves = pytree.tree_leaves(value)
    return " ".join(_leaf(leaf, shapes) for leaf in leaves if leaf is not None)


def _leaf(leaf: Any, shapes: Shapes) -> str:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf).__qualname__
    sizes = [_size(size, shapes) for size in leaf.shape]
    return f"{leaf.dtype} {'x'.join(sizes)} {leaf.device.type}"


def _size(size: Any, shapes: Shapes) -> str:
    """Symbols have names that depend on the process; a symbolic size is just that."""
    if shapes == "erased":
        return ERASED
    return str(size) if isinstance(size, int) else "symbol"
