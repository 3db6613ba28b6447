"""Put the ops of kernels into a Dynamo graph, in the place of the ops that they stand for.

    linear = linear(x, w, b)            t = aten.t(w); mm = aten.mm(x, t)
    gelu = gelu(linear)          ->     gelu = sgplan_kernels.bias_gelu_1f3a(mm, b)

A call of which only some ops go is first written out as the ops that it consists of. Autograd, AOT
and Inductor then meet the kernel like any custom op.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.fx as fx

from sgplan.planner.kernels.region import Region, given
from sgplan.planner.kernels.source import Unfit
from sgplan.planner.kernels.written import Written


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """An op that shall stand for a region.

    Attributes:
        op: takes the tensors that are given, returns one tensor or several.
        returns: the step of each tensor that it returns.
        name: of its node.
    """

    region: Region
    op: torch._ops.OpOverload
    returns: tuple[int, ...]
    name: str


def expandable(gm: fx.GraphModule, graph: Written, region: Region) -> None:
    """Refuse a region with a call that cannot be written out as its ops.

    Raises:
        Unfit: with the call.
    """
    callers = graph.callers()
    wanted = {callers[node] for node in region.nodes}
    calls = {node.name: node for node in gm.graph.nodes}
    for name in wanted:
        if name not in calls:
            raise Unfit("it is part of a region that runs as a whole, such as a checkpoint")
        if name not in graph.values:
            raise Unfit(f"`{calls[name].target}` makes more than one tensor")
        if callers.get(graph.values[name]) != name and any(
            user.name not in wanted for user in calls[name].users
        ):
            raise Unfit(f"the result of `{calls[name].target}` is changed in place")
    for node, name in callers.items():
        if name in wanted and node.op == "get_attr":
            raise Unfit(f"`{name}` reads a constant of the graph")


def placed(gm: fx.GraphModule, graph: Written, standing: Sequence[Standing]) -> fx.GraphModule:
    """A copy of a Dynamo graph with the ops in it."""
    new = copy.deepcopy(gm)
    inlined = _write_out(new, graph, {node for s in standing for node in s.region.nodes})
    for each in standing:
        _stand_in(new.graph, each, inlined)
    new.graph.lint()
    new.recompile()
    return new


def _write_out(
    gm: fx.GraphModule, graph: Written, members: Collection[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Write the calls of these ops out; returns who has the value of each op now."""
    callers = graph.callers()
    wanted = {callers[node] for node in members}
    by_name = {node.name: node for node in gm.graph.nodes}
    now: dict[fx.Node, fx.Node] = {}
    own: dict[str, list[fx.Node]] = {}
    for node, name in callers.items():
        own.setdefault(name, []).append(node)
    inputs = (node for node in graph.graph.nodes if node.op == "placeholder")
    now.update(zip(inputs, (n for n in gm.graph.nodes if n.op == "placeholder"), strict=True))
    for name in graph.values:
        if name not in wanted:
            now.setdefault(graph.result(name, own.get(name, ())), by_name[name])
    for name in (node.name for node in list(gm.graph.nodes) if node.name in wanted):
        call = by_name[name]
        with gm.graph.inserting_before(call):
            for node in own[name]:
                now[node] = _copied(gm.graph, node, now, call)
        call.replace_all_uses_with(now[graph.result(name, own[name])])
        gm.graph.erase_node(call)
    return now


def _copied(
    graph: fx.Graph, node: fx.Node, now: Mapping[fx.Node, fx.Node], call: fx.Node
) -> fx.Node:
    made = graph.node_copy(node, lambda n: now[n])
    made.meta = {
        key: call.meta[key]
        for key in ("nn_module_stack", "source_fn_stack", "stack_trace")
        if key in call.meta
    }
    made.meta["example_value"] = node.meta.get("val")
    return made


def _stand_in(graph: fx.Graph, each: Standing, now: dict[fx.Node, fx.Node]) -> None:
    nodes = [now[node] for node in each.region.nodes]
    arguments = tuple(now[tensor] for tensor in given(each.region.tensors))
    last = nodes[-1]
    with graph.inserting_after(last):
        call = graph.create_node("call_function", each.op, arguments, name=each.name)
    call.meta = {k: v for k, v in last.meta.items() if k != "source_fn_stack"}
    values = [each.region.steps[step].meta["val"] for step in each.returns]
    call.meta["example_value"] = values[0] if len(values) == 1 else tuple(values)
    after = call
    for place, step in enumerate(each.returns):
        result = call
        if len(each.returns) > 1:
            with graph.inserting_after(after):
                result = after = graph.call_function(operator.getitem, (call, place))
            result.meta["example_value"] = values[place]
        old = each.region.steps[step]
        now[old].replace_all_uses_with(result, delete_user_cb=lambda user: user not in nodes)
        now[old] = result  # another kernel may read it
    for node in reversed(nodes):
        graph.erase_node(node)
