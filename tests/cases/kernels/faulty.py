"""Wrong kernels for `aten.add -> aten.relu`, one fault each; `right` is right."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _right(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _off_by_one(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count - 1
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _no_store_mask(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, tl.maximum(value, 0.0).to(out.dtype.element_ty))


@triton.jit
def _no_relu(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _in_place(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + at, tl.maximum(value, 0.0).to(x.dtype.element_ty), mask=inside)


@triton.jit
def _undefined(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, not_defined_anywhere, mask=at < count)  # noqa: F821


@triton.jit
def _shapes(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count) + tl.arange(0, 2 * BLOCK)
    tl.store(out + at, value, mask=at < count)


def _launched(kernel, x: Tensor, y: Tensor, out: Tensor, block: int = 64) -> Tensor:
    kernel[(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), BLOCK=block)
    return out


def right(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.contiguous(), y.contiguous()
    return _launched(_right, x, y, torch.empty_like(x))


def plain(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y)


def wrong_plain(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x - y)


def off_by_one(x: Tensor, y: Tensor) -> Tensor:
    return _launched(_off_by_one, x, y, torch.empty_like(x))


def no_store_mask(x: Tensor, y: Tensor) -> Tensor:
    return _launched(_no_store_mask, x, y, torch.empty_like(x))


def wrong_math(x: Tensor, y: Tensor) -> Tensor:
    return _launched(_no_relu, x, y, torch.empty_like(x))


def wrong_dtype(x: Tensor, y: Tensor) -> Tensor:
    return _launched(_right, x, y, torch.empty_like(x, dtype=torch.float16))


def low_precision(x: Tensor, y: Tensor) -> Tensor:
    return _launched(_right, x, y, torch.empty_like(x, dtype=torch.bfloat16)).to(x.dtype)


def too_few_programs(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _right[(x.numel() // 64,)](x, y, out, x.numel(), BLOCK=64)
    return out


def in_place(x: Tensor, y: Tensor) -> Tensor:
    _in_place[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return x


def wrong_shape(x: Tensor, y: Tensor) -> Tensor:
    return _launched(_right, x, y, torch.empty_like(x)).flatten()


def undefined(x: Tensor, y: Tensor) -> Tensor:
    return _launched(_undefined, x, y, torch.empty_like(x))


def shapes(x: Tensor, y: Tensor) -> Tensor:
    return _launched(_shapes, x, y, torch.empty_like(x))


def raises(x: Tensor, y: Tensor) -> Tensor:
    raise ValueError("never works")


def no_kernel(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y)


def more_arguments(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return _launched(_right, x, y, torch.empty_like(x))


def takes_long(x: Tensor, y: Tensor) -> Tensor:
    while True:
        pass


def crashes(x: Tensor, y: Tensor) -> Tensor:
    import ctypes

    ctypes.string_at(0)
    return x


def leaves(x: Tensor, y: Tensor) -> Tensor:
    raise SystemExit(0)


def a_list(x: Tensor, y: Tensor) -> list[Tensor]:
    return [right(x, y)]


def blocks_of_64(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for row, other, to in zip(x, y, out, strict=True):
        _right[(1,)](row, other, to, min(row.numel(), 64), BLOCK=64)
    return out


def cut_off(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x.detach() + y)


def in_place_plain(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y).relu()


def right_backward(grad: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    passed = torch.where(x + y > 0, grad, 0)
    return passed, passed.clone()


def wrong_backward(grad: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return grad.clone(), grad.clone()
