from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch import nn

from sgplan.interpreter import ops
from sgplan.planner import torch_api
from sgplan.planner.capture import insert
from sgplan.planner.capture.insert import grouped, insert_ready, parameter_gradients

assert ops.__doc__  # imported for the op it registers

READY = torch.ops.sgplan.ready.default


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Graph:
    """The AOT backward graph of a module, and the Dynamo inputs its parameters are among."""

    def __init__(self, module: nn.Module, *inputs: torch.Tensor) -> None:
        self.inputs: list[Any] = []
        self.gm = fx.GraphModule({}, fx.Graph())
        torch.compile(module, backend=self._backend)(*inputs)

    def _backend(self, gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.inputs = list(inputs)

        def keep(graph: fx.GraphModule, example: Any) -> Callable[..., Any]:
            self.gm = graph
            return graph.forward

        torch_api.capture_only(gm, inputs, lambda graph, example: graph.forward, keep)
        return gm.forward

    def calls(self) -> list[fx.Node]:
        return [node for node in self.gm.graph.nodes if node.target is READY]

    def run(self, *tangents: torch.Tensor) -> list[Any]:
        """The graph's outputs for ones in every other place."""
        given = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        values = [torch.linspace(-1, 1, n.meta["val"].numel()) for n in given]
        shaped = [
            torch.empty_strided(n.meta["val"].shape, n.meta["val"].stride()).copy_(
                v.reshape(n.meta["val"].shape)
            )
            for n, v in zip(given, values, strict=True)
        ]
        return list(self.gm(*shaped))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 33)
        self.b = nn.Linear(33, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


class Shared(nn.Module):
    """Two parameters whose gradients are one node."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(4))
        self.b = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.a + self.b)


class Through(nn.Module):
    """A parameter whose gradient is the tangent itself."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift


X = torch.ones(4, 3)


def test_every_parameter_gradient_goes_through_the_op() -> None:
    graph = Graph(Mlp(), X)
    assert insert_ready(graph.gm, graph.inputs) == 1
    (call,) = graph.calls()
    arguments: Any = call.args
    grads, places, strides = arguments
    assert len(grads) == 4
    assert len(strides) == 2 + 1 + 2 + 1
    parameters = [graph.inputs[place] for place in places]  # all inputs are tensors here
    assert [tuple(node.meta["val"].shape) for node in grads] == [tuple(p.shape) for p in parameters]


def test_the_graphs_results_do_not_change() -> None:
    graph = Graph(Mlp(), X)
    before = graph.run()
    insert_ready(graph.gm, graph.inputs)
    for mine, theirs in zip(graph.run(), before, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)


def test_inserted_values_have_metadata_in_the_parameters_strides() -> None:
    channels_last = torch.channels_last
    conv: Any = nn.Conv2d(2, 3, 3)
    conv.to(memory_format=channels_last)
    graph = Graph(conv, torch.ones(1, 2, 5, 5).contiguous(memory_format=torch.channels_last))
    insert_ready(graph.gm, graph.inputs)
    (call,) = graph.calls()
    by_shape = {tuple(value.shape): value.stride() for value in call.meta["val"]}
    assert by_shape[tuple(conv.weight.shape)] == conv.weight.stride()
    assert type(call.meta["val"][0]).__name__ == "FakeTensor"


def test_a_gradient_node_of_two_parameters_goes_through_once() -> None:
    graph = Graph(Shared(), torch.ones(4))
    found = parameter_gradients(graph.gm, graph.inputs)
    assert len(found) == 1
    before = graph.run()
    insert_ready(graph.gm, graph.inputs)
    for mine, theirs in zip(graph.run(), before, strict=True):
        assert mine is None or torch.equal(mine, theirs)


def test_an_input_handed_through_as_a_gradient_is_left_alone() -> None:
    graph = Graph(Through(), torch.ones(4))
    found = parameter_gradients(graph.gm, graph.inputs)
    assert [tuple(graph.inputs[gradient.forward_input].shape) for gradient in found] == [(4,)]
    assert all(gradient.node.op != "placeholder" for gradient in found)
    assert len(found) == 1


def test_the_gradient_of_an_input_is_no_parameters() -> None:
    x = torch.ones(4, 3, requires_grad=True)
    graph = Graph(Mlp(), x)
    assert len(parameter_gradients(graph.gm, graph.inputs)) == 4


def test_a_graph_without_parameters_is_unchanged() -> None:
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

    graph = Graph(Square(), torch.ones(3, requires_grad=True))
    code = graph.gm.code
    assert insert_ready(graph.gm, graph.inputs) == 0
    assert graph.gm.code == code


def test_places_count_tensors_only_when_sizes_come_first() -> None:
    module = Mlp()
    calls: list[tuple[list[Any], fx.GraphModule]] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        def keep(graph: fx.GraphModule, example: Any) -> Any:
            calls.append((list(inputs), graph))
            return graph.forward

        torch_api.capture_only(gm, inputs, lambda graph, example: graph.forward, keep)
        return gm.forward

    torch.compile(module, backend=backend, dynamic=True)(torch.ones(7, 3))
    ((inputs, gm),) = calls
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    assert len(tensors) < len(inputs)
    for gradient in parameter_gradients(gm, inputs):
        parameter = tensors[gradient.forward_input]
        assert isinstance(parameter, nn.Parameter)
        assert gradient.strides == parameter.stride()


def test_groups_are_neighbours_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(Mlp(), X)
    found = parameter_gradients(graph.gm, graph.inputs)
    assert [g.position for g in found] == sorted(g.position for g in found)
    monkeypatch.setattr(insert, "GROUP_BYTES", 1)
    monkeypatch.setattr(insert, "LAST_BYTES", 0)
    assert [len(group) for group in grouped(found)] == [1, 1, 1, 1]
    assert insert_ready(graph.gm, graph.inputs) == 4
    order = [node for node in graph.gm.graph.nodes if node.target is READY]
    assert order == graph.calls()


def test_a_small_rest_joins_the_group_before(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(Mlp(), X)
    found = parameter_gradients(graph.gm, graph.inputs)
    monkeypatch.setattr(insert, "GROUP_BYTES", 1)
    monkeypatch.setattr(insert, "LAST_BYTES", 0)
    apart = grouped(found)
    assert len(apart) > 2
    monkeypatch.setattr(insert, "LAST_BYTES", sum(g.nbytes for g in apart[-1]) + 1)
    joined = grouped(found)
    assert joined == [*apart[:-2], apart[-2] + apart[-1]]
    assert [each for group in joined for each in group] == found


def test_a_group_has_one_dtype() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x).double())

    graph = Graph(Mixed(), X)
    groups = grouped(parameter_gradients(graph.gm, graph.inputs))
    dtypes = [{g.node.meta["val"].dtype for g in group} for group in groups]
    assert all(len(kinds) == 1 for kinds in dtypes)
    assert sum(len(group) for group in groups) == 4


def test_the_op_stands_directly_behind_the_last_of_its_group() -> None:
    graph = Graph(Mlp(), X)
    last = max(parameter_gradients(graph.gm, graph.inputs), key=lambda g: g.position).node
    insert_ready(graph.gm, graph.inputs)
    (call,) = graph.calls()
    assert call.prev is last
