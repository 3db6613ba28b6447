from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from sgplan.interpreter import gate
from sgplan.interpreter.gate import Owner
from sgplan.planner import torch_api


class Taker:
    """Stands for a reducer that takes over what the gate allows."""

    def __init__(self, parameters: Sequence[torch.Tensor], looked_at: Collection[int]) -> None:
        this: Any = self
        self.owner_of = {
            torch_api.grads_accumulator(p): Owner(this, index) for index, p in enumerate(parameters)
        }
        self.openings: list[tuple[Any, gate.Opening]] = []
        self.looked_at = looked_at
        self.all_free = not looked_at

    def can_take(self, index: int) -> bool:
        return index not in self.looked_at

    def batch(self, indices: Sequence[int]) -> Any:
        return tuple(indices)


def takers(*parameters: torch.Tensor, looked_at: Collection[int] = ()) -> list[Any]:
    return [Taker(parameters, looked_at)]


def compiled(module: nn.Module) -> Any:
    """One AOT node, without code generation."""
    return torch.compile(module, backend="aot_eager")


@pytest.fixture
def linear() -> nn.Linear:
    torch._dynamo.reset()
    return nn.Linear(3, 2)


X = torch.ones(4, 3)


def allowed(*roots: torch.Tensor, of: nn.Module) -> set[int]:
    """Indices of the parameters a compiled node may hand over."""
    found = gate._openings(roots, takers(*of.parameters()))
    return {owner.index for opening in found.values() for owner in opening.owners.values()}


def owners(node: Any) -> int:
    opening = gate._open.get(node)
    return 0 if opening is None else len(opening.owners)


def test_a_parameter_with_one_edge_from_a_compiled_node_is_allowed(linear: nn.Linear) -> None:
    assert allowed(compiled(linear)(X).sum(), of=linear) == {0, 1}


def test_an_eager_node_hands_nothing_over(linear: nn.Linear) -> None:
    assert allowed(linear(X).sum(), of=linear) == set()


def test_a_module_called_twice_has_two_edges(linear: nn.Linear) -> None:
    call = compiled(linear)
    assert allowed(call(X).sum() + call(X).sum(), of=linear) == set()


def test_a_penalty_outside_the_graph_excludes_only_its_parameter(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum() + linear.weight.pow(2).sum()
    assert allowed(loss, of=linear) == {1}


def test_two_roots_of_one_backward_are_walked_together(linear: nn.Linear) -> None:
    call = compiled(linear)
    assert allowed(call(X).sum(), linear.bias.sum(), of=linear) == {0}


def test_parameters_nobody_offered_are_not_allowed(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum()
    (opening,) = gate._openings([loss], takers(linear.bias)).values()
    assert [owner.index for owner in opening.owners.values()] == [0]
    assert gate._openings([loss], []) == {}


def test_a_gradient_somebody_looks_at_is_not_allowed(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum()
    (opening,) = gate._openings([loss], takers(*linear.parameters(), looked_at=[0])).values()
    assert [owner.index for owner in opening.owners.values()] == [1]


def test_parameters_of_two_reducers_are_allowed_together(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum()
    both = takers(linear.weight) + takers(linear.bias)
    (opening,) = gate._openings([loss], both).values()
    assert {owner.reducer for owner in opening.owners.values()} == set(both)


def test_places_count_from_the_nodes_own_inputs(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum()
    ((node, opening),) = gate._openings([loss], takers(*linear.parameters())).items()
    assert type(node).__name__ == torch_api.COMPILED_NODE
    for place, owner in opening.owners.items():
        assert node.next_functions[place][0].variable is list(linear.parameters())[owner.index]


def test_a_root_without_a_graph_is_no_edge() -> None:
    assert gate._openings([torch.ones(1)], []) == {}


def test_the_gate_is_closed_outside_and_after(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum()
    with gate.Opened([loss], takers(*linear.parameters())):
        (node,) = gate._open
        assert owners(node) == 2
    assert owners(node) == 0
    assert gate._open == {}


def test_an_error_inside_closes_it(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum()
    with pytest.raises(ValueError, match="script"), gate.Opened([loss], takers(linear.weight)):
        raise ValueError("the script's")
    assert gate._open == {}


def test_a_backward_inside_a_backward_has_its_own_gate(linear: nn.Linear) -> None:
    outer, inner = compiled(linear)(X).sum(), compiled(linear)(X).sum()
    with gate.Opened([outer], takers(*linear.parameters())):
        (first,) = gate._open
        with gate.Opened([inner], []):
            assert owners(first) == 0
        assert owners(first) == 2


def test_a_gradient_edge_is_a_root_like_a_tensor(linear: nn.Linear) -> None:
    from torch.autograd.graph import get_gradient_edge

    loss = compiled(linear)(X).sum()
    edge: Any = get_gradient_edge(loss)
    assert allowed(edge, of=linear) == {0, 1}


def test_an_opening_is_known_again_in_the_next_backward(linear: nn.Linear) -> None:
    call, offered = compiled(linear), takers(*linear.parameters())
    first, second = (gate._openings([call(X).sum()], offered) for _ in range(2))
    assert list(first.values()) == list(second.values())


def test_what_is_known_yields_to_a_gradient_somebody_looks_at(linear: nn.Linear) -> None:
    call, offered = compiled(linear), takers(*linear.parameters())
    assert len(gate._openings([call(X).sum()], offered).popitem()[1].owners) == 2
    offered[0].looked_at, offered[0].all_free = [1], False
    (opening,) = gate._openings([call(X).sum()], offered).values()
    assert [owner.index for owner in opening.owners.values()] == [0]


def test_what_is_known_yields_to_a_second_edge(linear: nn.Linear) -> None:
    call, offered = compiled(linear), takers(*linear.parameters())
    assert len(gate._openings([call(X).sum()], offered).popitem()[1].owners) == 2
    loss = call(X).sum() + linear.weight.pow(2).sum()
    (opening,) = gate._openings([loss], offered).values()
    assert [owner.index for owner in opening.owners.values()] == [1]


def test_a_node_with_a_successor_of_the_scripts_is_not_kept(linear: nn.Linear) -> None:
    offered = takers(*linear.parameters())
    x = torch.ones(4, 3, requires_grad=True)
    gate._openings([compiled(linear)(x).sum()], offered)
    assert offered[0].openings == []


def test_a_parameter_of_two_reducers_goes_by_hooks(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum()
    both = takers(*linear.parameters()) + takers(linear.bias)
    (opening,) = gate._openings([loss], both).values()
    assert [(owner.reducer, owner.index) for owner in opening.owners.values()] == [(both[0], 0)]


def test_gradients_of_one_op_are_divided_among_their_reducers(linear: nn.Linear) -> None:
    loss = compiled(linear)(X).sum()
    both = takers(linear.weight) + takers(linear.bias)
    (opening,) = gate._openings([loss], both).values()
    places = {owner.reducer: place for place, owner in opening.owners.items()}
    asked = [99, *(places[reducer] for reducer in both)]
    division = opening.divide(tuple(asked))
    assert division.rest == (0,)
    assert [(reducer, batch, at) for reducer, batch, at in division.shares] == [
        (both[0], (0,), (1,)),
        (both[1], (0,), (2,)),
    ]
    assert opening.divisions[tuple(asked)] is division
