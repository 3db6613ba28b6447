"""`capture { rounding, random }`: compiled code computes what eager computes, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgplan.planner import torch_api
from sgplan.planner.engine_settings import inductor_settings

from .build import plan

# torch says these of itself when Inductor is first imported, and of two formats in one kernel.
pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
    pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed"),
]


def under(body: str, function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The function compiled with the settings of a `capture` block."""
    settings = inductor_settings(plan(f"capture {{ {body} }}").capture_of(None), "cpu")

    def backend(gm: Any, inputs: Any) -> Any:
        return torch_api.compile_fx(gm, inputs, config_patches=settings)

    torch._dynamo.reset()
    return torch.compile(function, backend=backend)


def b034(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a @ b).to(torch.bfloat16).float() + c


def chain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    x, y, z = (t.bfloat16() for t in (a[:17, :17], b[:17, :17], c[:17, :17]))
    return F.gelu(x * y + z) * x - y


def mixed(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    x, y, z = a[:17, :17], b[:17, :17], c[:17, :17]
    return ((x * y).half().float() + z).to(torch.bfloat16) * z


@pytest.mark.slow
@pytest.mark.parametrize("function", [b034, chain, mixed])
def test_rounding_as_eager_is_exact_and_the_default_is_not(
    function: Callable[..., Tensor],
) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(33, 17), torch.randn(17, 29), torch.randn(33, 29)
    expected = function(*inputs)
    assert torch.equal(under("rounding = as_eager", function)(*inputs), expected)
    assert not torch.equal(under("rounding = default", function)(*inputs), expected)


class Branches(nn.Module):
    """Two independent dropout branches, the second smaller, and a result that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(16, 64), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        large = F.dropout(torch.relu(self.large(x)), 0.3)
        small = F.dropout(torch.relu(self.small(x)), 0.3)
        F.dropout(large, 0.5)
        return torch.cat([small, F.dropout(large, 0.1)], 1)


@pytest.mark.slow
def test_b063_exact_random_numbers_are_eagers_in_eagers_order() -> None:
    module, x = Branches(), torch.linspace(-1, 1, 8 * 16).reshape(8, 16)

    def run(call: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        return call(x), torch.rand(1)

    expected, next_drawn = run(module)
    found, drawn = run(under("random = exact", module))
    assert torch.equal(found, expected)
    assert torch.equal(drawn, next_drawn)
    assert not torch.equal(run(under("random = default", module))[0], expected)
