"""What the ops of a graph draw, write and read: the accesses that `planner/effects.py` judges.

A Dynamo graph is looked at in the ops that its calls dispatch, so a call has the effects of its
ops and no list of functions of torch is needed. An op draws when torch marks it as seeded; it
writes what its schema says it writes, and the running statistics of the norms whose schema is
silent about them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner import torch_api
from sgplan.planner.capture.provenance import caller, module_of, op_name
from sgplan.planner.capture.random_ops import draws
from sgplan.planner.capture.schema import arguments
from sgplan.planner.effects import MADE, Access

_aten = torch.ops.aten
# Norms that change their running statistics without saying so, and what switches that on.
_SILENT = {
    _aten.native_batch_norm.default: "training",
    _aten.cudnn_batch_norm.default: "training",
    _aten.miopen_batch_norm.default: "training",
}
_STATISTICS = ("running_mean", "running_var")

Names = Callable[[int, fx.Node], str]


def dynamo_accesses(
    gm: fx.GraphModule, names: Sequence[str], modules: Collection[str] = ()
) -> list[Access]:
    """Of the ops that a Dynamo graph calls, in order.

    Args:
        gm: its placeholders have example values.
        names: of the memory of the script's inputs, by place (`provenance.memory_names`); what
            passes took beside them is theirs to change.
        modules: module paths of the unwrapped model.
    """
    traced, _ = torch_api.trace_calls(gm)

    def name(place: int, node: fx.Node) -> str:
        return names[place] if place < len(names) else f"{MADE}{node.name}"

    calls = {node.name: _called(node) for node in gm.graph.nodes}

    def call(node: fx.Node) -> str:
        return calls.get(caller(node), caller(node)) or node.name

    return _accesses(traced.graph, modules, name, call)


def graph_accesses(
    graph: fx.Graph, modules: Collection[str] = (), names: Sequence[str] = ()
) -> list[Access]:
    """Of an ATen graph, in order.

    Args:
        names: of the memory of the Dynamo graph's inputs, by place.
    """
    inputs = (node for node in graph.nodes if node.op == "placeholder")
    places = [torch_api.plain_input(node.meta.get("desc")) for node in inputs]

    def name(place: int, node: fx.Node) -> str:
        source = places[place]
        return names[source] if source is not None and source < len(names) else node.name

    return _accesses(graph, modules, name, lambda node: node.name)


def writes(node: fx.Node) -> bool:
    """Whether an op changes memory that it is given."""
    return node.op == "call_function" and bool(_written(node))


def written_inputs(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Placeholders that some ops of a graph change, themselves or through a view."""
    calls = (node for node in nodes if node.op == "call_function")
    return {owner for node in calls for value in _written(node) for owner in viewed_inputs(value)}


def viewed_inputs(node: fx.Node) -> set[fx.Node]:
    """Placeholders in whose memory a value lies."""
    if node.op == "placeholder":
        return {node}
    looked_at = _viewed(node) if node.op == "call_function" else []
    return {owner for value in looked_at for owner in viewed_inputs(value)}


def _called(node: fx.Node) -> str:
    """The call of the script that a Dynamo node is, or was written out from."""
    stack = node.meta.get("source_fn_stack")
    return str(stack[-1][0]) if stack else node.name


def _accesses(
    graph: fx.Graph, modules: Collection[str], names: Names, call: Callable[[fx.Node], str]
) -> list[Access]:
    memory: dict[fx.Node, tuple[str, ...]] = {}
    count: Counter[str] = Counter()
    found: list[Access] = []
    place = 0
    for node in graph.nodes:
        if node.op == "placeholder":
            memory[node] = (names(place, node),)
            place += 1
        elif node.op == "get_attr":
            memory[node] = (str(node.target),)
        elif node.op == "call_function":
            written, viewed = _written(node), _viewed(node)
            caller_name = call(node)
            stem = f"{caller_name}.{_short_op(node)}"
            key = f"{stem}#{count[stem]}" if count[stem] else stem
            count[stem] += 1
            memory[node] = _memories(viewed, memory) if viewed else (f"{MADE}{key}",)
            if viewed and not written:
                continue
            found.append(_access(node, key, caller_name, written, memory, modules))
    return found


def _access(
    node: fx.Node,
    key: str,
    caller_name: str,
    written: Sequence[fx.Node],
    memory: dict[fx.Node, tuple[str, ...]],
    modules: Collection[str],
) -> Access:
    writes = _memories(written, memory)
    reads = tuple(m for m in _memories(node.all_input_nodes, memory) if m not in writes)
    streams, inside = _draws(node), _bodies(node, node.graph.owning_module)
    for body in inside:
        for each in body.graph.nodes:
            streams += tuple(stream for stream in _draws(each) if stream not in streams)
    module = module_of(node, modules)
    return Access(key, op_name(node.target), module, streams, writes, reads, caller_name)


def _bodies(node: fx.Node, graph: fx.GraphModule | None) -> list[fx.GraphModule]:
    """Graphs that a higher-order op runs, and those that they run."""
    found: list[fx.GraphModule] = []
    for source in node.all_input_nodes:
        body = _attribute(graph, str(source.target)) if source.op == "get_attr" else None
        if isinstance(body, fx.GraphModule):
            found.append(body)
            for inner in body.graph.nodes:
                found += _bodies(inner, body)
    return found


def _attribute(owner: Any, path: str) -> Any:
    for part in path.split("."):
        owner = getattr(owner, part, None)
    return owner


def _short_op(node: fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


def _memories(nodes: Iterable[fx.Node], memory: dict[fx.Node, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for node in nodes for name in memory.get(node, ())))


def _draws(node: fx.Node) -> tuple[str, ...]:
    """Streams that an op takes numbers from."""
    target: Any = node.target
    if getattr(target, "__name__", "") == "run_and_save_rng_state":
        return (f"rng:{_device(node)}",)
    if not isinstance(target, torch._ops.OpOverload):
        return ()
    if str(target) == "prims.inductor_random.default":
        seed: Any = node.args[1]
        return (f"seed:{seed.args[1]}",) if len(seed.args) > 1 else ()
    return (f"rng:{_device(node)}",) if draws(node) else ()


def _device(node: fx.Node) -> str:
    """Of the random numbers: the device of what is made, else of what is read."""
    for each in (node, *node.all_input_nodes):
        for key in ("val", "example_value"):
            values = each.meta.get(key)
            for value in values if isinstance(values, (list, tuple)) else (values,):
                if isinstance(value, torch.Tensor):
                    return value.device.type
    return "cpu"


def _written(node: fx.Node) -> list[fx.Node]:
    """Arguments that an op changes."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        if getattr(target, "__name__", "") == "triton_kernel_wrapper_mutation":
            return list(node.all_input_nodes)
        return []
    given = arguments(node)
    if (switch := _SILENT.get(target)) is not None:
        changed = [given.get(name) for name in _STATISTICS] if given.get(switch) else []
        return list(_nodes(changed))
    marked = (a.name for a in target._schema.arguments if a.alias_info and a.alias_info.is_write)
    return list(_nodes([given.get(name) for name in marked]))


def _viewed(node: fx.Node) -> list[fx.Node]:
    """Arguments in whose memory the result of an op lies."""
    target: Any = node.target
    if target is operator.getitem:
        return list(node.all_input_nodes)
    if not isinstance(target, torch._ops.OpOverload):
        return []
    returned = {
        name
        for result in target._schema.returns
        if result.alias_info is not None
        for name in result.alias_info.before_set
    }
    given = arguments(node)
    shared = [
        given.get(a.name)
        for a in target._schema.arguments
        if a.alias_info is not None and returned & set(a.alias_info.before_set)
    ]
    return list(_nodes(shared))


def _nodes(value: Any) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _nodes(part)
