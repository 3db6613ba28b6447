"""`aten.add -> norm` in one kernel: the sum of two tensors, and its LayerNorm or RMSNorm.

Both are returned, because a residual stream reads the sum again. One program for each row; the
backward's weight gradients are summed in as many parts as it has programs.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

PARTS = 64


@triton.jit
def _sum(x, y, inside):
    """In float32: Triton's interpreter adds bfloat16 as if it were integers."""
    one = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    return one + tl.load(y, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _forward(
    x, y, weight, bias, total, out, width, eps,
    CENTER: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    added = _sum(x + at, y + at, inside).to(total.dtype.element_ty)
    tl.store(total + at, added, mask=inside)
    value = added.to(tl.float32)
    if CENTER:
        value = tl.where(inside, value - tl.sum(value, 0) / width, 0.0)
    value *= 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    if WEIGHT:
        value *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dtotal, dout, x, y, weight, dx, dweight, dbias, rows, width, eps,
    CENTER: tl.constexpr, WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    inside = column < width
    part = tl.program_id(0).to(tl.int64)
    parts = tl.num_programs(0)
    of_weight = tl.zeros((BLOCK,), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    for turn in range(tl.cdiv(rows - tl.program_id(0), parts)):
        at = (part + turn * parts) * width + column
        value = _sum(x + at, y + at, inside).to(x.dtype.element_ty).to(tl.float32)
        if CENTER:
            value = tl.where(inside, value - tl.sum(value, 0) / width, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
        value *= scale
        slope = tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
        of_weight += slope * value
        of_bias += slope
        if WEIGHT:
            slope *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        inner = slope - value * (tl.sum(slope * value, 0) / width)
        if CENTER:
            inner -= tl.sum(slope, 0) / width
        inner = inner * scale + tl.load(dtotal + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + at, inner.to(dx.dtype.element_ty), mask=inside)
    tl.store(dweight + part * width + column, of_weight, mask=inside)
    tl.store(dbias + part * width + column, of_bias, mask=inside)


def add_layer_norm(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """x + y, and its LayerNorm over the last dim."""
    return _run(x, y, weight, bias, eps, center=True)


def add_rms_norm(
    x: Tensor, y: Tensor, weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    """x + y, and its RMSNorm over the last dim."""
    return _run(x, y, weight, None, _least(x, eps), center=False)


def add_layer_norm_backward(
    dtotal: Tensor,
    dout: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, ...]:
    """Gradients of the tensors that are given."""
    return _gradients(dtotal, dout, x, y, weight, bias, eps, center=True)


def add_rms_norm_backward(
    dtotal: Tensor,
    dout: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of the tensors that are given."""
    return _gradients(dtotal, dout, x, y, weight, None, _least(x, eps), center=False)


def add_layer_norm_reference(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    total = x + y
    return total, F.layer_norm(total, total.shape[-1:], weight, bias, eps)


def add_rms_norm_reference(
    x: Tensor, y: Tensor, weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    total = x + y
    return total, F.rms_norm(total, total.shape[-1:], weight, eps)


def _least(x: Tensor, eps: float | None) -> float:
    """What `rms_norm` adds when nothing is said: it computes in float32 at least."""
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.finfo(wide).eps if eps is None else eps


def _run(
    x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, center: bool
) -> tuple[Tensor, Tensor]:
    _fits(x, y, weight, bias)
    x, y = x.contiguous(), y.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    _forward[(x.numel() // width,)](
        x, y, x if weight is None else weight, x if bias is None else bias, total, out, width, eps,
        CENTER=center, WEIGHT=weight is not None, BIAS=bias is not None,
        BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip
    return total, out


def _gradients(
    dtotal: Tensor,
    dout: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    center: bool,
) -> tuple[Tensor, ...]:
    x, y, dtotal, dout = (tensor.contiguous() for tensor in (x, y, dtotal, dout))
    width = x.shape[-1]
    rows = x.numel() // width
    parts = min(rows, PARTS)
    dx = torch.empty_like(x)
    dweight, dbias = (torch.empty(parts, width, device=x.device) for _ in range(2))
    _backward[(parts,)](
        dtotal, dout, x, y, x if weight is None else weight, dx, dweight, dbias, rows, width, eps,
        CENTER=center, WEIGHT=weight is not None, BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip
    found = [dx, dx.clone()]
    if weight is not None:
        found.append(dweight.sum(0).to(weight.dtype))
    if bias is not None:
        found.append(dbias.sum(0).to(bias.dtype))
    return tuple(found)


def _fits(x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    if x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(f"{tuple(x.shape)} and {tuple(y.shape)} of {x.dtype} and {y.dtype}")
    for each in (weight, bias):
        if each is not None and each.shape != x.shape[-1:]:
            raise ValueError(f"{tuple(each.shape)} is not the last dim of {tuple(x.shape)}")
