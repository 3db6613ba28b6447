"""`bias -> aten.gelu` in one kernel: gelu(x + bias), exact or by tanh."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _gelu(x, TANH: tl.constexpr):
    if TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * tl.sigmoid(2.0 * inner)
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_slope(x, TANH: tl.constexpr):
    if TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        share = tl.sigmoid(2.0 * inner)
        steep = 2.0 * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x)
        return share + x * share * (1.0 - share) * steep
    density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density


@triton.jit
def _forward(x, bias, y, count, width, TANH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + at % width, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, _gelu(value, TANH).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(grad, x, bias, dx, count, width, TANH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + at % width, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * _gelu_slope(value, TANH)
    tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=inside)


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """gelu(x + bias); x of any shape, bias of its last dim."""
    _fits(x, bias)
    x, bias = x.contiguous(), bias.contiguous()
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    _forward[grid](x, bias, y, x.numel(), bias.numel(), TANH=approximate == "tanh", BLOCK=BLOCK)
    return y


def bias_gelu_backward(
    grad: Tensor, x: Tensor, bias: Tensor, approximate: str = "none"
) -> tuple[Tensor, Tensor]:
    """Gradients of x and bias."""
    grad, x, bias = grad.contiguous(), x.contiguous(), bias.contiguous()
    dx = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    tanh = approximate == "tanh"
    _backward[grid](grad, x, bias, dx, x.numel(), bias.numel(), TANH=tanh, BLOCK=BLOCK)
    return dx, dx.reshape(-1, bias.numel()).sum(0, dtype=torch.float32).to(bias.dtype)


def bias_gelu_reference(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """The same in plain torch."""
    return F.gelu(x + bias, approximate=approximate)


def _fits(x: Tensor, bias: Tensor) -> None:
    if bias.dim() != 1 or x.shape[-1:] != bias.shape:
        raise ValueError(f"a bias of {tuple(bias.shape)} is no last dim of {tuple(x.shape)}")
