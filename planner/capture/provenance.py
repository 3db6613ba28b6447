"""Names as in the unwrapped model: of the op, module and call behind a node, of a region's values.

Wrappers put themselves into names (`module.`, `_orig_mod.`, `L['fn'].__self__.`); none of them may
reach a plan, a listing or a selector.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner import torch_api

_ROOT = re.compile(r"\A[LG]\[[^\]]*\](?:\.__self__|\.__wrapped__|\.__func__)*")
# The root in a reason of a recompile, which may leave out the dictionary of the frame.
_OWNER = re.compile(r"^(?:L\[')?(?:fn(?:'\])?\.__self__|self(?:'\])?)")
# Dynamo's name depends on whether the script reached a module by name or by iteration.
_STEPS = ("__dict__['_modules']", "_modules")
_STEP = re.compile(rf"\.(?:{'|'.join(map(re.escape, _STEPS))})\['([^']+)'\]")
_KEY = re.compile(r"\[(['\"]?)([^\]'\"]*)\1\]")
_ARGUMENT = re.compile(r"\AL\['args'\]\[(\d+)\]\Z")
_LAST_KEY = re.compile(r"\[['\"](\w+)['\"]\]\Z")
_OWNED = re.compile(r"\._(?:parameters|buffers)(?=\[)")
_NUMBER = re.compile(r"_\d+\Z")

# Containers of children, and wrappers that are never part of a model's own names.
_DROPPED = frozenset(
    {"_modules", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
)


def module_path(raw: str, modules: Collection[str] = ()) -> str:
    """`L['fn'].__self__._modules['blocks']._modules['0']` -> `blocks.0`; the root is empty.

    Args:
        modules: the model's own module paths. A leading `module` is a wrapper's unless the model
            has that path itself.
    """
    path = _KEY.sub(lambda match: f".{match[2]}", _ROOT.sub("", raw))
    parts = [part for part in path.split(".") if part and part not in _DROPPED]
    while parts and parts[0] == "module" and ".".join(parts) not in modules:
        parts = parts[1:]
    return ".".join(parts)


def attribute_path(source: str) -> tuple[str, str] | None:
    """`fn.__self__._modules['layers']._modules['0'].kind` -> (`layers.0`, `kind`); else None."""
    owner = _OWNER.match(source)
    if owner is None:
        return None
    rest = source[owner.end() :]
    name = _STEP.sub("", rest).removeprefix(".")
    return (".".join(_STEP.findall(rest)), name) if name.isidentifier() else None


def attribute_sources(module: str, name: str) -> list[str]:
    """The names that Dynamo may have for an attribute of a module of a captured call."""
    steps = module.split(".") if module else []
    ways = itertools.product(_STEPS, repeat=len(steps))
    prefixes = (
        "".join(f".{way}[{step!r}]" for way, step in zip(each, steps, strict=True)) for each in ways
    )
    return [f"L['fn'].__self__{prefix}.{name}" for prefix in prefixes]


def module_of(node: fx.Node, modules: Collection[str] = ()) -> str:
    """The innermost module whose forward made the node, or whose backward it is part of."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    return module_path(list(stack.values())[-1][0], modules)


def op_name(target: Any) -> str:
    """`aten.addmm.default`, `mylib::scan.default`; of a higher-order op its own name."""
    if not isinstance(target, torch._ops.OpOverload):
        return f"higher_order::{getattr(target, '__name__', str(target))}"
    if target.namespace in ("aten", "prims"):
        return str(target)
    return f"{target.namespace}::{str(target).split('.', 1)[1]}"


def caller(node: fx.Node) -> str:
    """The name of the Dynamo node whose call this is; empty for what a rewrite added."""
    if origins := node.meta.get("from_node"):
        return origins[0].name
    stack = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack")
    return stack[-1][0] if stack else ""


def input_names(
    graph: fx.GraphModule, inputs: Sequence[object], signature: Sequence[str] = ()
) -> tuple[str | None, ...]:
    """Short names of a Dynamo graph's inputs; None for parameters, buffers and sizes.

    Args:
        graph: as Dynamo made it.
        inputs: what it was called with.
        signature: parameter names of the captured `forward`, without `self`, for positional
            arguments that reach it through a frame of `*args`.
    """
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return tuple(
        _input_name(torch_api.input_source(node), node.name, signature)
        if isinstance(value, torch.Tensor) and not _of_a_module(torch_api.input_source(node))
        else None
        for node, value in zip(placeholders, inputs, strict=False)
    )


def memory_names(
    graph: fx.GraphModule, modules: Collection[str] = (), signature: Sequence[str] = ()
) -> tuple[str, ...]:
    """Names of all inputs of a Dynamo graph: `bn.running_mean`, `x`.

    Dynamo forgets where inputs come from when its compile is over.

    Args:
        graph: as Dynamo made it.
        modules: as in `module_path`.
        signature: as in `input_names`.
    """
    found: list[str] = []
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        source = torch_api.input_source(node)
        if _of_a_module(source):
            found.append(module_path(_OWNED.sub("", source), modules))
        else:
            found.append(_input_name(source, node.name, signature))
    return tuple(found)


def _of_a_module(source: str) -> bool:
    return "_parameters[" in source or "_buffers[" in source


def _input_name(source: str, node: str, signature: Sequence[str]) -> str:
    argument = _ARGUMENT.match(source)
    if argument is not None:
        place = int(argument[1])
        return signature[place] if place < len(signature) else f"arg{place}"
    key = _LAST_KEY.search(source)
    return key[1] if key else node.strip("_").removeprefix("l_")


def output_names(graph: fx.GraphModule) -> tuple[str, ...]:
    """Names of a Dynamo graph's outputs, as the script's own variables where Dynamo kept them."""
    values = graph.graph.output_node().args[0]
    values = values if isinstance(values, (list, tuple)) else (values,)
    found: list[str] = []
    for place, value in enumerate(values):
        name = _NUMBER.sub("", value.name) if isinstance(value, fx.Node) else ""
        # `input` is what torch.nn.Sequential calls its running value: no name for a result.
        fits = name and name != "input" and name not in found
        found.append(name if fits else _unnamed(place, len(values)))
    return tuple(found)


def _unnamed(place: int, count: int) -> str:
    return "out" if count == 1 else f"out{place}"
