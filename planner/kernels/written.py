"""A Dynamo graph in the ops it calls, searched for the sites of kernels before AOTAutograd sees it.

A kernel must stand in the graph before gradients are derived, so its sites cannot be found in the
graphs that Inductor gets. Here the forward is traced once more, without autograd. A pattern is
matched on the ops that eager dispatches (`aten.addmm`, `aten.native_layer_norm`) and, if it occurs
nowhere among those, on the calls themselves (`aten.rms_norm`), of which some are many ops.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner import torch_api
from sgplan.planner.capture.bias import claims_bias, split_bias
from sgplan.planner.capture.groups import OpGroup, caller, group_ops
from sgplan.planner.capture.provenance import module_of
from sgplan.planner.capture.record import op_families
from sgplan.planner.capture.sites import Site, find
from sgplan.planner.kernels.source import Unfit
from sgplan.planner.rules import Rule

# Calls whose op has another name.
_OPS = {"cross_entropy": "cross_entropy_loss"}


@dataclass(slots=True)
class Written:
    """A Dynamo graph in the ops that it calls.

    Attributes:
        graph: traced forward.
        values: for each node of the Dynamo graph that makes a tensor, who has its value here.
        ops: for each call with an op of its own, that op.
        constants: and its arguments that are no tensors.
    """

    graph: fx.Graph
    values: dict[str, fx.Node]
    ops: dict[str, str]
    constants: dict[str, dict[str, Any]]
    _callers: dict[fx.Node, str] | None = None
    _split: set[OpGroup] = field(default_factory=set[OpGroup])

    def split_bias_of(self, site: Site) -> None:
        """Make the first step of a site the addition of the bias alone, where it claims one.

        Raises:
            Unfit: it cannot be split off.
        """
        first = site.groups[0]
        if not claims_bias(site) or first in self._split:
            return
        split = split_bias(self.graph, first)
        if split is None:
            raise Unfit(f"the bias of `{first.op}` cannot be split off")
        self._split.add(first)
        self._callers = None
        first.nodes[:] = [split.added]
        self.values = {name: split.instead.get(n, n) for name, n in self.values.items()}
        for made in split.instead.values():
            if not made.users and made not in self.values.values():
                self.graph.erase_node(made)

    def result(self, name: str, own: Sequence[fx.Node]) -> fx.Node:
        """Who had the value of a Dynamo node when it had run: a later one may have changed it.

        Args:
            own: the ops that it called.
        """
        value = self.values[name]
        return value if value in own or not own else own[-1]

    def callers(self) -> dict[fx.Node, str]:
        """The Dynamo node that called each op; what a split added belongs to the same."""
        if self._callers is not None:
            return self._callers
        found: dict[fx.Node, str] = {}
        last = ""
        for node in self.graph.nodes:
            if node.op in ("call_function", "get_attr"):
                last = caller(node) or last
                found[node] = last
        self._callers = found
        return found


def written(gm: fx.GraphModule) -> Written:
    """Trace what a Dynamo graph calls; nothing reads the values of all its nodes any more."""
    traced, values = torch_api.trace_calls(gm)
    results = gm.graph.output_node().args[0]
    kept = [values[n.name] for n in _nodes(results) if n.name in values]
    traced.graph.output_node().args = (kept,)
    named = {n: name for n in gm.graph.nodes if (name := _op(n))}
    return Written(
        traced.graph,
        values,
        {node.name: f"aten.{name}.default" for node, name in named.items()},
        {node.name: _constants(node, name) for node, name in named.items()},
    )


def _op(call: fx.Node) -> str:
    """The op of torch that a call is named after; empty for none."""
    if call.op not in ("call_function", "call_method"):
        return ""
    name = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", "")
    name = _OPS.get(name, name)
    packet = getattr(torch.ops.aten, name, None)
    known = isinstance(packet, torch._ops.OpOverloadPacket) and "default" in packet.overloads()
    return name if known else ""


def _constants(call: fx.Node, op: str) -> dict[str, Any]:
    """By their names in the schema of the op."""
    names = [a.name for a in getattr(torch.ops.aten, op).default._schema.arguments]
    written = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    return {
        name: value
        for name, value in written.items()
        if name in names and not isinstance(_example(value), torch.Tensor)
    }


def _example(value: object) -> object:
    return value.meta.get("example_value") if isinstance(value, fx.Node) else value


def _nodes(results: object) -> list[fx.Node]:
    parts = results if isinstance(results, (list, tuple)) else (results,)
    return [part for part in parts if isinstance(part, fx.Node)]


def sites_of(rules: Sequence[Rule], graph: Written, modules: Collection[str]) -> list[Site]:
    """Sites of the rules that have kernels; every rule claims what is its own.

    Args:
        rules: all of the root, higher priority first.
        modules: module paths of the unwrapped model.
    """
    ops = group_ops(graph.graph, modules)
    found = [site for site in find(rules, ops).sites if site.rule.kernel is not None]
    missing = {r.address for r in rules if r.kernel is not None} - {s.rule.address for s in found}
    if missing:
        taken = {group for site in found for group in site.groups}
        wanted = [rule for rule in rules if rule.address in missing]
        calls = _calls(graph, ops, modules)
        found += [s for s in find(wanted, calls).sites if not _touches(s, taken)]
    return found


def _touches(site: Site, taken: Collection[OpGroup]) -> bool:
    nodes = {node for group in taken for node in group.nodes}
    return any(node in nodes for group in site.groups for node in group.nodes)


def _calls(
    graph: Written, ops: Mapping[fx.Node, OpGroup], modules: Collection[str]
) -> dict[fx.Node, OpGroup]:
    """One group for each call with an op of its own that is many; the others op by op."""
    group_of: dict[fx.Node, OpGroup] = {}
    by_call: dict[str, OpGroup] = {}
    parts: dict[str, set[OpGroup]] = {}
    for node, group in ops.items():
        if not group.layout:
            parts.setdefault(caller(node), set()).add(group)
    for node, group in ops.items():
        name = caller(node)
        op = graph.ops.get(name)
        if op is None or len(parts.get(name, ())) < 2:
            group_of[node] = group
            continue
        if name not in by_call:
            families = op_families(op, node)
            by_call[name] = OpGroup(op, module_of(node, modules), families, name, False)
        by_call[name].nodes.append(node)
        group_of[node] = by_call[name]
    return group_of
