"""A value that the forward saves and then changes reaches the backward as it was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch import nn

from sgplan.planner import torch_api
from sgplan.planner.capture.saved import keep_saved

# torch says this of itself when Inductor is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counted(nn.Module):
    """Its backward needs the buffer as the forward read it, which torch 2.13 computes again."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x * self.weight * self.seen


def gradient(backend: Any = None) -> tuple[list[float], float]:
    module = Counted()
    call = module if backend is None else torch.compile(module, backend=backend)
    for _ in range(2):
        call(torch.arange(4.0)).sum().backward()
    assert module.weight.grad is not None
    return module.weight.grad.tolist(), module.seen.item()


def test_gradients_are_those_of_eager() -> None:
    kept: list[int] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        def inner(graph: fx.GraphModule, example: Any, **kwargs: Any) -> Any:
            if not kwargs.get("is_backward"):
                kept.append(keep_saved(graph))
            return torch_api.compile_fx_inner(graph, example, **kwargs)

        with torch_api.functorch_config(enable_autograd_cache=False):
            return torch_api.compile_fx(gm, inputs, inner_compile=inner)

    assert gradient(backend) == gradient()
    assert kept == [1]
