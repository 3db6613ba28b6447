"""A pass over a Dynamo graph that changes numbers is found at its node."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx
from torch import nn

from sgplan.planner.capture.probe import Suspect, suspect
from sgplan.planner.capture.rewrite import Rewritten
from sgplan.planner.capture.scale import ScaleLoss


class Net(nn.Module):
    def forward(self, x: Any, w: Any, count: Any) -> Any:
        count.add_(1)
        hidden = torch.relu(x @ w)
        one = torch.nn.functional.dropout(hidden, 0.5)
        return one + torch.nn.functional.dropout(hidden, 0.2), count


def probed(change: Callable[[fx.Graph], None]) -> Suspect | None:
    before = fx.symbolic_trace(Net())
    after = copy.deepcopy(before)
    change(after.graph)
    after.recompile()
    torch.manual_seed(1)
    inputs = [torch.randn(8, 4), torch.randn(4, 4).requires_grad_(), torch.zeros(())]
    state = torch.get_rng_state()
    found = suspect(Rewritten(before), Rewritten(after), inputs, (), 1e-6, 1e-5)
    assert torch.equal(torch.get_rng_state(), state)
    assert inputs[2] == 0  # the script's own tensors are not written
    return found


def node(graph: fx.Graph, name: str) -> fx.Node:
    return next(n for n in graph.nodes if n.name == name)


def test_the_same_graph_has_no_suspect() -> None:
    assert probed(lambda graph: None) is None


def test_another_op_is_named() -> None:
    def change(graph: fx.Graph) -> None:
        node(graph, "relu").target = torch.sigmoid

    found = probed(change)
    assert found is not None
    assert (found.op, found.how) == ("sigmoid", "`relu` has another value after the pass")


def test_what_the_pass_put_in_is_named_rather_than_its_reader() -> None:
    def change(graph: fx.Graph) -> None:
        relu = node(graph, "relu")
        with graph.inserting_after(relu):
            scaled = graph.call_function(operator.mul, (relu, 1.5))
        relu.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)

    found = probed(change)
    assert found is not None
    assert found.op == "mul"


def test_a_random_op_that_moved_is_found() -> None:
    def change(graph: fx.Graph) -> None:
        node(graph, "dropout").prepend(node(graph, "dropout_1"))

    found = probed(change)
    assert found is not None
    assert found.op == "dropout"


def test_a_lost_mutation_is_found() -> None:
    def change(graph: fx.Graph) -> None:
        for each in graph.nodes:
            if each.target == "add_":
                each.target = "add"

    found = probed(change)
    assert found is not None
    assert found.how == "`count` is not written as before"


def test_a_lost_gradient_is_found_where_it_is_cut() -> None:
    def change(graph: fx.Graph) -> None:
        relu = node(graph, "relu")
        with graph.inserting_after(relu):
            cut = graph.call_method("detach", (relu,))
        node(graph, "dropout").replace_input_with(relu, cut)

    found = probed(change)
    assert found is not None
    assert (found.op, found.how) == ("detach", "`dropout` has no gradient after the pass")


class Masked(nn.Module):
    def forward(self, x: Any, w: Any) -> Any:
        hidden = x @ w
        masked = hidden.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        return torch.relu(masked + 1.0)


def test_minus_infinity_of_a_mask_is_no_difference() -> None:
    before = fx.symbolic_trace(Masked())
    after = copy.deepcopy(before)
    matmul = node(after.graph, "matmul")
    with after.graph.inserting_after(matmul):
        rounded = after.graph.call_function(operator.mul, (matmul, 1.0 + 2**-23))
    matmul.replace_all_uses_with(rounded, delete_user_cb=lambda user: user is not rounded)
    node(after.graph, "relu").target = torch.sigmoid
    after.recompile()
    inputs = [torch.randn(4, 4), torch.randn(4, 4).requires_grad_()]
    found = suspect(Rewritten(before), Rewritten(after), inputs, (), 1e-6, 1e-5)
    assert found is not None
    assert found.op == "sigmoid"


def test_gradients_that_are_scaled_inside_of_a_graph_alone_are_no_difference() -> None:
    before = fx.symbolic_trace(Net())
    for each in before.graph.nodes:
        each.meta["example_value"] = torch.zeros(4, 4).requires_grad_(each.name == "w")
    after = ScaleLoss(torch.tensor(1024.0)).apply(Rewritten(before))
    inputs = [torch.randn(8, 4), torch.randn(4, 4).requires_grad_(), torch.zeros(())]
    assert suspect(Rewritten(before), after, inputs, (), 1e-6, 1e-5) is None
