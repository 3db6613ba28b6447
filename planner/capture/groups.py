"""The ops of a graph as the script called them, and the data flow between those.

Inductor's graphs are decomposed: one `layer_norm` is nine nodes. AOTAutograd leaves on every node
which op it came from (`original_aten`), in which call of the script (`from_node`) and in which
order (`seq_nr`); nodes that agree in all three are one group. Recomputed nodes carry the same
marks, so a place of the script keeps its key in every graph that computes it.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch.fx as fx

from sgplan.planner.capture.provenance import caller, module_of
from sgplan.planner.capture.record import op_families, op_name, origin_of
from sgplan.planner.families import is_cast, is_layout


@dataclass(eq=False, slots=True)
class OpGroup:
    """One op as it was dispatched, and the nodes it was decomposed to.

    Attributes:
        op, module, families: as in `facts.OpFact`.
        key: names the call in the script, the same in every graph that computes it.
        backward: whether it belongs to the backward of the script, not to a recomputed forward.
        nodes: in graph order.
    """

    op: str
    module: str
    families: tuple[str, ...]
    key: str
    backward: bool
    nodes: list[fx.Node] = field(default_factory=list[fx.Node])

    @property
    def layout(self) -> bool:
        """Whether it only looks at the same memory in another way."""
        return is_layout(self.op)

    @property
    def cast(self) -> bool:
        """Whether it only changes the dtype."""
        return is_cast(self.op)


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """A value that one op makes and another reads, through ops that only change layout or dtype.

    Attributes:
        value: the producer's node.
        operand: what the consumer reads of it.
        reader: the consumer's node.
        casts: nodes between them that change the dtype.
    """

    producer: OpGroup
    consumer: OpGroup
    value: fx.Node
    operand: fx.Node
    reader: fx.Node
    casts: tuple[fx.Node, ...] = ()


def group_ops(graph: fx.Graph, modules: Collection[str] = ()) -> dict[fx.Node, OpGroup]:
    """The group of every op of a graph, groups in the order of their first nodes.

    Args:
        modules: module paths of the unwrapped model.
    """
    group_of: dict[fx.Node, OpGroup] = {}
    open_calls: dict[tuple[str, object], OpGroup] = {}
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        source = node.all_input_nodes[0] if node.target is operator.getitem else None
        if source in group_of:
            group = group_of[source]
        else:
            call = _call(node)
            group = None if call is None else open_calls.get(call)
            if group is None:
                name = _name(node)
                group = _group(node, f"{name}#{counts[name]}" if counts[name] else name, modules)
                counts[name] += 1
            if call is not None:
                open_calls[call] = group
        group_of[node] = group
        group.nodes.append(node)
    return group_of


def _group(node: fx.Node, key: str, modules: Collection[str]) -> OpGroup:
    op = op_name(origin_of(node))
    return OpGroup(op, module_of(node, modules), op_families(op, node), key, _is_backward(node))


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def _call(node: fx.Node) -> tuple[str, object] | None:
    """The call a decomposed node belongs to; None for an op that is a call of its own."""
    origin = origin_of(node)
    if node.meta.get("original_aten") is None or node.target is origin:
        return None
    # Random ops are replaced behind the trace and lose their number; their call has one op anyway.
    return _name(node), node.meta.get("seq_nr")


def _name(node: fx.Node) -> str:
    """Call, op and direction: stable from run to run, as `seq_nr` is not."""
    if node.meta.get("original_aten") is None:
        return node.name
    part = "backward" if _is_backward(node) else "forward"
    return f"{caller(node)}/{op_name(origin_of(node))}/{part}"


def flows(group_of: Mapping[fx.Node, OpGroup]) -> Iterator[Flow]:
    """Every flow between ops that are not layout only, by consumer in graph order.

    A cast is an op like others, and flows also run through it.
    """
    for reader, consumer in group_of.items():
        if consumer.layout:
            continue
        seen: set[fx.Node] = set()
        for operand in reader.all_input_nodes:
            if group_of.get(operand) is not consumer:
                for value, casts in _sources(operand, group_of):
                    if value not in seen:
                        seen.add(value)
                        yield Flow(group_of[value], consumer, value, operand, reader, casts)


def _sources(
    operand: fx.Node, group_of: Mapping[fx.Node, OpGroup]
) -> Iterator[tuple[fx.Node, tuple[fx.Node, ...]]]:
    """What an operand is a view or a cast of: nearest first."""
    casts: tuple[fx.Node, ...] = ()
    node: fx.Node | None = operand
    while node is not None and (group := group_of.get(node)) is not None:
        if not group.layout:
            yield node, casts
            if not group.cast:
                return
            casts = (node, *casts)
        node = node.all_input_nodes[0] if node.all_input_nodes else None
