from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from sgplan.interpreter import backward
from sgplan.interpreter.rank import Rank

from .world import rank_under, root_of

pytestmark = pytest.mark.usefixtures("patched")


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    found, _ = rank_under(tmp_path)
    backward.install(found, None)
    return found


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def test_a_tensor_a_list_a_generator_and_an_edge_are_roots(rank: Rank) -> None:
    x = leaf()
    x.sum().backward()
    torch.autograd.backward([x.sum(), (2 * x).sum()])
    generator: Any = (y for y in [x.sum()])
    torch.autograd.backward(generator)
    torch.autograd.backward(get_gradient_edge(x.sum()), torch.tensor(1.0))
    assert x.grad is not None
    assert x.grad.eq(6).all()


def test_arguments_mean_what_they_mean_in_torch(rank: Rank) -> None:
    x, y = leaf(), leaf()
    loss = (x * y).sum()
    loss.backward(torch.tensor(2.0), retain_graph=True, inputs=[x])
    assert y.grad is None
    loss.backward()
    assert x.grad is not None
    assert x.grad.eq(3).all()


def test_an_error_of_the_backward_comes_out_and_leaves_the_rank_ready(rank: Rank) -> None:
    x = leaf()
    loss = x.exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    assert rank._depth == 0


def test_a_backward_inside_a_backward_is_part_of_it(rank: Rank) -> None:
    x = leaf()

    class Checkpointed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                (y * 2).sum().backward()
            assert rank._depth == 1
            assert y.grad is not None
            return grads[0] * y.grad

    Checkpointed.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.eq(2).all()


def test_plan_mode_ends_at_the_first_backward_of_a_root(tmp_path: Path) -> None:
    rank, _ = rank_under(tmp_path, mode="plan")

    def planned() -> None:
        raise SystemExit("planned")

    backward.install(rank, planned)
    x = leaf()
    x.sum().backward()
    root = root_of(torch.nn.Linear(2, 2))
    rank.roots.append(root)
    x.sum().backward()
    root.called = 1
    with pytest.raises(SystemExit, match="planned"):
        x.sum().backward()
