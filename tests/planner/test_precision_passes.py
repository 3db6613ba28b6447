"""The passes of `precision` one behind the other, as a rank runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch import Tensor, nn

from sgplan.planner.capture.casts import CastPrecision
from sgplan.planner.capture.rewrite import Rewritten, rewritten
from sgplan.planner.capture.scale import ScaleLoss
from sgplan.planner.precision import Setting


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    """Counts its calls in a float buffer, which a graph returns and no gradient reaches."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls = self.calls + 1
        return self.outer(torch.relu(self.inner(x))), self.calls.mul(1)


def gradients(net: Net, call: Callable[..., Any], x: Tensor) -> list[Tensor]:
    call(x)[0].pow(2).mean().backward()
    found = [p.grad for p in net.parameters() if p.grad is not None]
    assert len(found) == 4
    return found


@pytest.mark.parametrize("value", [1.0, 4096.0, 65536.0])
def test_gradients_of_a_lowered_graph_arrive_unscaled(value: float) -> None:
    scale = torch.tensor(value)
    passes = (CastPrecision((Setting("fp16"),), ("", "inner", "outer")), ScaleLoss(scale))

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        changed = rewritten(gm, passes)
        assert isinstance(changed, Rewritten)
        return changed.called(changed.gm.forward)

    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    net, other = Net(), Net()
    ours = gradients(net, torch.compile(net, backend=backend, fullgraph=True), x)
    for mine, plain in zip(ours, gradients(other, other, x), strict=True):
        assert mine.dtype is torch.float32
        torch.testing.assert_close(mine, plain, rtol=1e-2, atol=1e-3)
    assert net.calls.item() == other.calls.item() == 1


def test_what_fp16_flushes_to_zero_is_kept_by_a_scale() -> None:
    """A loss so small that its gradients are below fp16's least number."""
    found: dict[float, float] = {}
    for value in (1.0, 65536.0):
        passes = (
            CastPrecision((Setting("fp16"),), ("", "inner", "outer")),
            ScaleLoss(torch.tensor(value)),
        )

        def backend(gm: fx.GraphModule, inputs: list[Any], own: Any = passes) -> Any:
            changed = rewritten(gm, own)
            return changed.called(changed.gm.forward)

        torch._dynamo.reset()
        net = Net()
        out = torch.compile(net, backend=backend, fullgraph=True)(torch.ones(5, 6))[0]
        (out.mean() * 1e-8).backward()
        weight = net.inner.weight.grad
        assert weight is not None
        found[value] = weight.abs().max().item()
    assert found[1.0] == 0
    assert found[65536.0] > 1e-10


class Spectrum(nn.Module):
    """Returns complex numbers, and has parameters of several types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 8)
        self.filter = nn.Parameter(torch.randn(8, dtype=torch.cfloat))
        self.wide = nn.Parameter(torch.rand(8, dtype=torch.double) + 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        return torch.fft.fft(y) * self.filter, (y.double() * self.wide).sum()


def test_gradients_of_complex_and_double_values_arrive_unscaled_and_in_full() -> None:
    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        changed = rewritten(gm, (ScaleLoss(torch.tensor(65536.0)),))
        return changed.called(changed.gm.forward)

    def grads(net: Spectrum, call: Callable[..., Any]) -> list[Tensor]:
        spectrum, total = call(torch.ones(5, 6))
        (spectrum.abs().pow(2).mean() + total.square()).backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    net, other = Spectrum(), Spectrum()
    ours = grads(net, torch.compile(net, backend=backend, fullgraph=True))
    plain = grads(other, other)
    assert [g.dtype for g in ours][:2] == [torch.cfloat, torch.double]
    for mine, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[1], plain[1], rtol=1e-14, atol=0)
