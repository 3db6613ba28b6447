"""The part of a graph that a kernel stands for: what goes in, what comes out, its constants."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner.capture.groups import OpGroup
from sgplan.planner.families import is_layout
from sgplan.planner.kernels.source import Unfit


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The nodes of one site, with those that only change layout or dtype between its steps.

    Attributes:
        nodes: in graph order.
        tensors: what they read from outside, by op and operand; None for an optional tensor that
            is not given; trailing ones are left out.
        steps: the value of each step of the pattern.
        read: the steps whose values are read outside; the last one is always among them.
        constants: other arguments of the ops by their names in the schema; of two that differ,
            none.
    """

    nodes: tuple[fx.Node, ...]
    tensors: tuple[fx.Node | None, ...]
    steps: tuple[fx.Node, ...]
    read: tuple[int, ...]
    constants: Mapping[str, Any]

    def module(self) -> fx.GraphModule:
        """The script's own ops as a function: the tensors that are given, to a tuple of steps."""
        graph = fx.Graph()
        new: dict[fx.Node, fx.Node] = {}
        for place, tensor in enumerate(given(self.tensors)):
            new[tensor] = graph.placeholder(f"t{place}")
        for node in self.nodes:
            new[node] = graph.node_copy(node, lambda n: new[n])
            new[node].meta = {}
        graph.output(tuple(new[step] for step in self.steps))
        return fx.GraphModule(torch.nn.Module(), graph)


def given(tensors: tuple[fx.Node | None, ...]) -> list[fx.Node]:
    return [tensor for tensor in tensors if tensor is not None]


def region_of(
    groups: tuple[OpGroup, ...],
    changing: Sequence[fx.Node],
    of_calls: Mapping[str, Mapping[str, Any]],
) -> Region:
    """The region of a site's ops.

    Args:
        changing: the ops of the graph that change something in place.
        of_calls: constants of whole calls, by the keys of their groups.

    Raises:
        Unfit: no kernel can stand for it.
    """
    members = {node for group in groups for node in group.nodes}
    for before, after in pairwise(groups):
        members |= set(_between(before, after))
    nodes = tuple(sorted(members))
    steps = tuple(map(_value, groups))
    _refuse_strange(nodes)
    read = _read(nodes, steps)
    tensors, constants = _arguments(nodes, {n for g in groups for n in g.nodes})
    for group in groups:
        constants |= of_calls.get(group.key, {})
    _refuse_changes(nodes, given(tensors), changing)
    if not given(tensors):
        raise Unfit("its ops read no tensor")
    for step in read:
        if not steps[step].meta["val"].is_contiguous():
            raise Unfit(f"`{steps[step].target}` makes a tensor that is not contiguous")
    for name, value in constants.items():
        if any(isinstance(part, fx.Node) for part in _flat(value)):
            raise Unfit(f"`{name}` is not the same number in every step")
    return Region(nodes, tensors, steps, read, constants)


def _between(before: OpGroup, after: OpGroup) -> Iterator[fx.Node]:
    """Nodes on the way from one op to the next: each reads one tensor."""
    for reader in after.nodes:
        for operand in reader.all_input_nodes:
            way: list[fx.Node] = []
            node: fx.Node | None = operand
            while node is not None and node not in before.nodes and node not in after.nodes:
                way.append(node)
                inputs = node.all_input_nodes
                node = inputs[0] if node.op == "call_function" and len(inputs) == 1 else None
            if node in before.nodes:
                yield from way


def _value(group: OpGroup) -> fx.Node:
    """What an op makes for others: of several tensors, the first."""
    for node in group.nodes:
        if node.target is operator.getitem and node.args[1] == 0:
            return node
    return group.nodes[-1]


def _refuse_strange(nodes: tuple[fx.Node, ...]) -> None:
    for node in nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            if node.target is not operator.getitem:
                raise Unfit(f"`{node.target}` is no op that a kernel can stand for")
        elif torch.Tag.nondeterministic_seeded in node.target.tags:
            raise Unfit(f"`{node.target}` is random: no kernel can be compared with it")
        elif node.target._schema.is_mutable and not _changes_its_own(node, nodes):
            raise Unfit(f"`{node.target}` changes a tensor that others see")


def _refuse_changes(
    nodes: tuple[fx.Node, ...], tensors: Iterable[fx.Node], changing: Sequence[fx.Node]
) -> None:
    """The kernel reads its tensors where the last op stood, and keeps them for its gradient."""
    inside, read = {_base(node) for node in nodes}, {_base(tensor) for tensor in tensors}
    for node in changing:
        if node < nodes[0] or node in nodes:
            continue
        changed = {_base(value) for value in changed_by(node)}
        if changed & read or (node < nodes[-1] and changed & inside):
            raise Unfit(f"`{node.target}` changes one of its tensors in place")


def changed_by(node: fx.Node) -> list[fx.Node]:
    """What an op changes in place."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    return [
        value
        for argument, (_, _, written) in zip(_schema(node), _written(node), strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write
        for value in _flat(written)
        if isinstance(value, fx.Node)
    ]


def _base(value: fx.Node) -> fx.Node:
    """Whose memory a value is: views, and what was changed in place, are looked through."""
    while value.op == "call_function" and value.all_input_nodes:
        looks = value.target is operator.getitem or is_layout(str(value.target))
        if not looks and not changed_by(value):
            break
        value = value.all_input_nodes[0]
    return value


def _changes_its_own(node: fx.Node, nodes: tuple[fx.Node, ...]) -> bool:
    """Whether what an op changes in place was made here, and is read only here."""
    return all(
        value in nodes and all(user in nodes for user in value.users) for value in changed_by(node)
    )


def _read(nodes: tuple[fx.Node, ...], steps: tuple[fx.Node, ...]) -> tuple[int, ...]:
    read = {len(steps) - 1}
    for node in nodes:
        outside = [user for user in node.users if user not in nodes]
        if outside and node not in steps:
            raise Unfit(f"`{node.target}` between its steps is read elsewhere too")
        if any(user < nodes[-1] for user in outside):
            raise Unfit(f"`{node.target}` is read before the last step is reached")
        if outside:
            read.add(steps.index(node))
    return tuple(sorted(read))


def _arguments(
    nodes: tuple[fx.Node, ...], ops: set[fx.Node]
) -> tuple[tuple[fx.Node | None, ...], dict[str, Any]]:
    tensors: list[fx.Node | None] = []
    constants: dict[str, list[Any]] = {}
    for node in nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        for name, kind, value in _written(node):
            if _is_tensor(kind):
                values = value if isinstance(value, (list, tuple)) else (value,)
                tensors += [v for v in values if v is None or _new(v, nodes, tensors)]
            elif any(isinstance(v, fx.Node) for v in _flat(value)):
                raise Unfit(f"`{name}` of `{node.target}` is not the same in every step")
            elif node in ops:
                constants.setdefault(name, []).append(value)
    if any(tensor is not None and tensor.op == "get_attr" for tensor in tensors):
        raise Unfit("one of its tensors is a constant of the graph")
    while tensors and tensors[-1] is None:
        tensors.pop()
    agreed = {name: v[0] for name, v in constants.items() if all(x == v[0] for x in v)}
    return tuple(tensors), agreed


def _new(value: Any, nodes: Sequence[fx.Node], known: Sequence[fx.Node | None]) -> bool:
    """Whether it is a tensor from outside that was not met before; a number is no tensor."""
    return isinstance(value, fx.Node) and value not in nodes and value not in known


def _written(node: fx.Node) -> Iterator[tuple[str, Any, Any]]:
    """Arguments by schema, defaults filled in."""
    for place, argument in enumerate(_schema(node)):
        if place < len(node.args) and not argument.kwarg_only:
            value: Any = node.args[place]
        else:
            value = node.kwargs.get(argument.name, argument.default_value)
        yield argument.name, argument.type, value


def _schema(node: fx.Node) -> Sequence[torch.Argument]:
    assert isinstance(node.target, torch._ops.OpOverload)
    return node.target._schema.arguments


def _is_tensor(kind: object) -> bool:
    return "Tensor" in str(kind)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
