"""An ATen graph as plain facts: ops, provenance, cost, where gradients become final, digests.

Knows FX graphs as AOTAutograd leaves them. Refuses to know ranks and parameters as objects: names
of parameters, inputs and outputs are given by the caller, who saw the Dynamo graph.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.fx as fx
from torch.utils import _pytree as pytree

from sgplan.planner import torch_api
from sgplan.planner.capture.cost import bytes_moved, bytes_saved, flops, memory_owner
from sgplan.planner.capture.effects import graph_accesses
from sgplan.planner.capture.provenance import module_of, op_name
from sgplan.planner.capture.structure import structural_digest
from sgplan.planner.effects import effects_of
from sgplan.planner.facts import GradientFact, GraphFact, OpFact
from sgplan.planner.families import BIAS_OPERAND, base_name, families_of

_SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
HEAVY = frozenset({"matmul", "conv"})


@dataclass(frozen=True, slots=True)
class ValueNames:
    """What the script calls the values of a Dynamo graph (`capture.provenance.value_names`).

    Attributes:
        inputs: by place; None for parameters, buffers and sizes.
        outputs: by place.
        memory: of every input, parameters and buffers too (`capture.provenance.memory_names`).
    """

    inputs: tuple[str | None, ...] = ()
    outputs: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()


def record_graph(
    graph: fx.GraphModule,
    direction: Literal["forward", "backward"],
    region: str,
    *,
    gradients: Sequence[str | None] = (),
    groups: Sequence[Sequence[int]] = (),
    names: ValueNames | None = None,
    modules: Collection[str] = (),
    variant: int = 0,
) -> GraphFact:
    """The facts of one captured graph.

    Args:
        region: qualified name and line of the captured frame.
        gradients: of a backward graph, by output: the parameter whose gradient it is, else None.
        groups: outputs whose gradients are handed to the reduction together, behind the last.
        names: of the values at the region's edge.
        modules: module paths of the unwrapped model, to tell a wrapper's `module.` from a name.
        variant: counted up by recompilation.
    """
    nodes = [node for node in graph.graph.nodes if _is_op(node)]
    ops = tuple(_op_fact(node, modules) for node in nodes)
    names = names or ValueNames()
    common = partial(
        GraphFact,
        direction=direction,
        digest=structural_digest(graph),
        shapeless_digest=structural_digest(graph, shapes="erased"),
        region=region,
        ops=ops,
        variant=variant,
        effects=effects_of(graph_accesses(graph.graph, modules, names.memory)),
    )
    if direction == "forward":
        inputs = _inputs(graph, names)
        return common(
            inputs=tuple(name for name, _ in inputs),
            outputs=_outputs(graph, names),
            bytes_saved=bytes_saved(graph),
            input_shapes=tuple(_shape(value) for _, value in inputs),
        )
    return common(
        inputs=_tangents(graph, names),
        outputs=_grads(graph, gradients, names),
        gradients=tuple(_gradients(graph, gradients, groups, nodes, ops)),
        heavy_after=_heavy(ops),
    )


def _is_op(node: fx.Node) -> bool:
    """An op of the list: not a `getitem`, not arithmetic on sizes."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator))


def _op_fact(node: fx.Node, modules: Collection[str]) -> OpFact:
    name = op_name(node.target)
    return OpFact(
        name,
        module_of(node, modules),
        op_families(name, node),
        flops(node),
        bytes_moved(node),
        _dtypes([n.meta.get("val") for n in node.all_input_nodes]),
        _dtypes(node.meta.get("val")),
        op_name(origin_of(node)),
    )


def origin_of(node: fx.Node) -> object:
    """The op as the script's call dispatched it, where decomposition made others of it."""
    original = node.meta.get("original_aten")
    known = isinstance(original, (torch._ops.OpOverload, torch._ops.HigherOrderOperator))
    return original if known else node.target


def _short(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _SHORT.get(name, name)


def _dtypes(values: Any) -> tuple[str, ...]:
    """Short dtypes of the tensors among some values, each once."""
    tensors = (v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor))
    return tuple(dict.fromkeys(_short(v.dtype) for v in tensors))


def op_families(name: str, node: fx.Node) -> tuple[str, ...]:
    """Families of an op; one with an optional bias has it only where `node` has the operand."""
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
    groups: Sequence[Sequence[int]],
    nodes: Sequence[fx.Node],
    ops: Sequence[OpFact],
) -> Iterable[GradientFact]:
    """Where each named gradient becomes final: the op behind its views.

    Position -1 and no op when the graph hands one of its inputs through.
    """
    place_of = {node: place for place, node in enumerate(nodes)}
    values = graph.graph.output_node().args[0]
    assert isinstance(values, (list, tuple))
    places = [
        place_of.get(memory_owner(value), -1) if isinstance(value, fx.Node) else -1
        for value in values
    ]
    handed_over = {o: max(places[i] for i in group) for group in groups for o in group}
    for output, (place, name) in enumerate(zip(places, names, strict=False)):
        if name is None or values[output] is None:
            continue
        op, module = (ops[place].op, ops[place].module) if place >= 0 else ("", "")
        later = handed_over.get(output, place)
        yield GradientFact(
            parameter=name,
            position=place,
            op=op,
            module=module or name.rpartition(".")[0],
            handed_over=later if later != place else None,
        )


def _inputs(graph: fx.GraphModule, names: ValueNames) -> list[tuple[str, Any]]:
    """Name and value of the user's inputs of a forward graph, in order."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    kinds, _ = torch_api.descriptors(graph)
    places = [(node, torch_api.plain_input(kind)) for node, kind in zip(nodes, kinds, strict=True)]
    return [
        (name, node.meta.get("val"))
        for node, place in places
        if place is not None and place < len(names.inputs) and (name := names.inputs[place])
    ]


def _outputs(graph: fx.GraphModule, names: ValueNames) -> tuple[str, ...]:
    """Names of the user's outputs of a forward graph."""
    _, kinds = torch_api.descriptors(graph)
    places = map(torch_api.plain_output, kinds)
    return tuple(_output(place, names) for place in places if place is not None)


def _tangents(graph: fx.GraphModule, names: ValueNames) -> tuple[str, ...]:
    """What a backward graph is called with, beside what was saved: `dlogits`."""
    kinds, _ = torch_api.descriptors(graph)
    places = map(torch_api.plain_output, kinds)
    return tuple(f"d{_output(place, names)}" for place in places if place is not None)


def _grads(
    graph: fx.GraphModule, gradients: Sequence[str | None], names: ValueNames
) -> tuple[str, ...]:
    """What a backward graph returns: `grads` for all parameters, and `dx` for an input."""
    places = [p for p in torch_api.gradient_inputs(graph) if p is not None]
    own = [name for p in places if p < len(names.inputs) and (name := names.inputs[p])]
    return (*(("grads",) if any(gradients) else ()), *(f"d{name}" for name in own))


def _shape(value: Any) -> tuple[int | None, ...]:
    """Sizes of a captured value; None for a symbolic one."""
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    return tuple(size if isinstance(size, int) else None for size in shape)


def _output(place: int, names: ValueNames) -> str:
    return names.outputs[place] if place < len(names.outputs) else f"out{place}"
