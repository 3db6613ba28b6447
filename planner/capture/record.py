"""An ATen graph as plain facts: ops, provenance, cost, where gradients become final, digests.

Knows FX graphs as AOTAutograd leaves them. Refuses to know ranks and parameters as objects: names
of parameters, inputs and outputs are given by the caller, who saw the Dynamo graph.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx as fx
from sgplan.planner import torch_api
from sgplan.planner.capture.cost import bytes_moved, bytes_saved, flops, memory_owner
from sgplan.planner.capture.provenance import module_of
from sgplan.planner.capture.structure import structural_digest
from sgplan.planner.facts import GradientFact, GraphFact, OpFact
from sgplan.planner.families import BIAS_OPERAND, base_name, families_of

HEAVY = frozenset({"matmul", "conv"})


@dataclass(frozen=True, slots=True)
class ValueNames:
    """What the script calls the values of a Dynamo graph (`capture.provenance.value_names`).

    Attributes:
        inputs: by place; None for parameters, buffers and sizes.
        outputs: by place.
    """

    inputs: tuple[str | None, ...] = ()
    outputs: tuple[str, ...] = ()


def record_graph(
    graph: fx.GraphModule,
    direction: Literal["forward", "backward"],
    region: str,
    *,
    gradients: Sequence[str | None] = (),
    names: ValueNames | None = None,
    modules: Collection[str] = (),
    variant: int = 0,
) -> GraphFact:
    """The facts of one captured graph.

    Args:
        region: qualified name and line of the captured frame.
        gradients: of a backward graph, by output: the parameter whose gradient it is, else None.
        names: of the values at the region's edge.
        modules: module paths of the unwrapped model, to tell a wrapper's `module.` from a name.
        variant: counted up by recompilation.
    """
    nodes = [node for node in graph.graph.nodes if _is_op(node)]
    ops = tuple(_op_fact(node, modules) for node in nodes)
    inputs, outputs = _edges(graph, direction, gradients, names or ValueNames())
    return GraphFact(
        direction=direction,
        digest=structural_digest(graph),
        shapeless_digest=structural_digest(graph, shapes="erased"),
        region=region,
        inputs=inputs,
        outputs=outputs,
        ops=ops,
        bytes_saved=bytes_saved(graph) if direction == "forward" else 0,
        gradients=tuple(_gradients(graph, gradients, nodes, ops)),
        heavy_after=_heavy(ops) if direction == "backward" else (),
        variant=variant,
    )


def op_name(target: Any) -> str:
    """`aten.addmm.default`, `mylib::scan.default`; of a higher-order op its own name."""
    if not isinstance(target, torch._ops.OpOverload):
        return f"higher_order::{getattr(target, '__name__', str(target))}"
    if target.namespace in ("aten", "prims"):
        return str(target)
    return f"{target.namespace}::{str(target).split('.', 1)[1]}"


def _is_op(node: fx.Node) -> bool:
    """An op of the list: not a `getitem`, not arithmetic on sizes."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator))


def _op_fact(node: fx.Node, modules: Collection[str]) -> OpFact:
    name = op_name(node.target)
    return OpFact(
        name, module_of(node, modules), _families(name, node), flops(node), bytes_moved(node)
    )


def _families(name: str, node: fx.Node) -> tuple[str, ...]:
    found = families_of(name)
    place = BIAS_OPERAND.get(base_name(name))
    if place is None or (len(node.args) > place and node.args[place] is not None):
        return found
    return tuple(family for family in found if family != "bias")


def _heavy(ops: Iterable[OpFact]) -> tuple[int, ...]:
    return tuple(place for place, op in enumerate(ops) if HEAVY.intersection(op.families))


def _gradients(
    graph: fx.GraphModule,
    names: Sequence[str | None],
    nodes: Sequence[fx.Node],
    ops: Sequence[OpFact],
) -> Iterable[GradientFact]:
    """Where each named gradient becomes final: the op behind its views.

    Position -1 and no op when the graph hands one of its inputs through.
    """
    place_of = {node: place for place, node in enumerate(nodes)}
    values = graph.graph.output_node().args[0]
    assert isinstance(values, (list, tuple))
    for value, name in zip(values, names, strict=False):
        if name is None or not isinstance(value, fx.Node):
            continue
        place = place_of.get(memory_owner(value), -1)
        op = ops[place] if place >= 0 else None
        own_module = name.rpartition(".")[0]
        yield GradientFact(
            name, place, op.op if op else "", (op.module or own_module) if op else own_module
        )


def _edges(
    graph: fx.GraphModule,
    direction: Literal["forward", "backward"],
    gradients: Sequence[str | None],
    names: ValueNames,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """User values that come in and go out, in order."""
    into, out = torch_api.descriptors(graph)
    if direction == "forward":
        places = [torch_api.plain_input(d) for d in into]
        inputs = [names.inputs[p] for p in places if p is not None and p < len(names.inputs)]
        results = [torch_api.plain_output(d) for d in out]
        return tuple(n for n in inputs if n), tuple(
            _output(p, names) for p in results if p is not None
        )
    tangents = [torch_api.plain_output(d) for d in into]
    sources = torch_api.gradient_inputs(graph)
    own = [n for p in sources if p is not None and p < len(names.inputs) and (n := names.inputs[p])]
    grads = ("grads",) if any(gradients) else ()
    return (
        tuple(f"d{_output(p, names)}" for p in tangents if p is not None),
        (*grads, *(f"d{name}" for name in own)),
    )


def _output(place: int, names: ValueNames) -> str:
    return names.outputs[place] if place < len(names.outputs) else f"out{place}"
