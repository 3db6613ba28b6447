"""Put the reductions into a backward graph: `sgplan.ready` behind the last gradient of each group.

    grads = mm, sum, …                      grads = mm, sum, …
    return (…, g0, g1, …)          ->       s = sgplan.ready([g0, g1], [i0, i1], …)
                                            return (…, s[0], s[1], …)

The op carries no bucket and no module: at run time it finds its parameters from the running
autograd node, hands their gradients to the reducer that hooks use too, and returns what autograd
shall accumulate. So buckets change without compiling, and models of one class share compiled code.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner import effects, torch_api
from sgplan.planner.capture.effects import graph_accesses

OPS_VERSION = 4
GROUP_BYTES = 1 << 20
LAST_BYTES = GROUP_BYTES // 8


@dataclass(frozen=True, slots=True)
class Gradient:
    """One parameter gradient among a backward graph's outputs.

    Attributes:
        output: place in the output tuple.
        node: its producer.
        position: place of the producer in the graph.
        forward_input: place of the parameter among the *tensor* inputs of the forward graph, which
            is its place in the autograd node's `next_functions`.
        strides: the parameter's.
    """

    output: int
    node: fx.Node
    position: int
    forward_input: int
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        value = self.node.meta["val"]
        return value.numel() * value.element_size()


def parameter_gradients(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[Gradient]:
    """The outputs that are gradients of parameters with static shapes, in graph order.

    Args:
        gm: backward ATen graph.
        inputs: the Dynamo graph's inputs (parameters are real objects).
    """
    position = {node: place for place, node in enumerate(gm.graph.nodes)}
    tensor_place = {}
    for place, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            tensor_place[place] = len(tensor_place)
    values = gm.graph.output_node().args[0]
    assert isinstance(values, (list, tuple))
    found: list[Gradient] = []
    taken: set[fx.Node] = set()
    for output, source in enumerate(torch_api.gradient_inputs(gm)):
        node = values[output]
        if source is None or not isinstance(inputs[source], torch.nn.Parameter) or node in taken:
            continue
        assert isinstance(node, fx.Node)
        # A placeholder as gradient would alias an input of the graph: the op must not see it.
        if node.op == "placeholder":
            continue
        taken.add(node)
        strides = tuple(inputs[source].stride())
        found.append(Gradient(output, node, position[node], tensor_place[source], strides))
    return sorted(found, key=lambda gradient: gradient.position)


def grouped(gradients: Sequence[Gradient]) -> list[list[Gradient]]:
    """Neighbours in graph order, about `GROUP_BYTES` together: a call costs about 50 us.

    What is left for the last group joins the one before when it is not worth a call.
    """
    groups: list[list[Gradient]] = []
    size = 0
    for gradient in gradients:
        if not groups or size >= GROUP_BYTES or _dtype(groups[-1]) != _dtype([gradient]):
            groups.append([])
            size = 0
        groups[-1].append(gradient)
        size += gradient.nbytes
    if len(groups) > 1 and size < LAST_BYTES and _dtype(groups[-2]) == _dtype(groups[-1]):
        rest = groups.pop()
        groups[-1] += rest
    return groups


def _dtype(group: Sequence[Gradient]) -> torch.dtype:
    return group[0].node.meta["val"].dtype


def insert_ready(gm: fx.GraphModule, inputs: Sequence[Any]) -> int:
    """Rewrite a backward graph in place; returns the number of `ready` ops.

    Raises:
        Refused: effects did not stay in order, which is a fault of ours (SG0540).
    """
    before = graph_accesses(gm.graph)
    gradients = parameter_gradients(gm, inputs)
    groups = grouped(gradients)
    output = gm.graph.output_node()
    given: Any = output.args[0]
    values = list(given)
    for group in groups:
        last = max(group, key=lambda gradient: gradient.position).node
        for gradient, slot in zip(group, _add_call(gm, group, last), strict=True):
            values[gradient.output] = slot
    output.args = (type(given)(values),)
    gm.graph.lint()
    gm.recompile()
    effects.require("insert_ready", before, graph_accesses(gm.graph))
    return len(groups)


def _add_call(gm: fx.GraphModule, group: Sequence[Gradient], last: fx.Node) -> list[fx.Node]:
    nodes = [gradient.node for gradient in group]
    arguments = (
        nodes,
        [gradient.forward_input for gradient in group],
        [stride for gradient in group for stride in gradient.strides],
    )
    with gm.graph.inserting_after(last):
        call = gm.graph.call_function(torch.ops.sgplan.ready.default, arguments)
    mode = torch_api.graph_fake_mode(gm)
    with mode:
        call.meta["val"] = [
            torch.empty_strided(
                n.meta["val"].shape,
                g.strides,
                dtype=n.meta["val"].dtype,
                device=n.meta["val"].device,
            )
            for n, g in zip(nodes, group, strict=True)
        ]
    slots: list[fx.Node] = []
    previous = call
    for place in range(len(nodes)):
        with gm.graph.inserting_after(previous):
            previous = gm.graph.call_function(operator.getitem, (call, place))
        previous.meta["val"] = call.meta["val"][place]
        slots.append(previous)
    return slots
