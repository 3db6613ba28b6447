"""`aten._log_softmax -> aten.nll_loss_forward` in one kernel: softmax and cross-entropy, mean.

One program for each row; the softmax is taken online (Milakov and Gimelshein, 2018), so that a row
may be longer than a block, and no row of probabilities is ever stored.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _statistics(row, width, BLOCK: tl.constexpr):
    """Largest value, and the sum of the exponentials of the others' distances from it."""
    top = -float("inf")
    total = 0.0
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(row + column, mask=column < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(value, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(value - higher), 0)
        top = higher
    return top, total


@triton.jit
def _forward(logits, target, losses, width, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * width
    label = tl.load(target + row)
    top, total = _statistics(start, width, BLOCK)
    counts = label != ignored
    picked = tl.load(start + label, mask=counts, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(counts, top + tl.log(total) - picked, 0.0))


@triton.jit
def _backward(grad, logits, target, dlogits, width, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * width
    label = tl.load(target + row)
    top, total = _statistics(start, width, BLOCK)
    scale = tl.where(label != ignored, tl.load(grad).to(tl.float32), 0.0)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < width
        value = tl.load(start + column, mask=inside, other=-float("inf")).to(tl.float32)
        slope = tl.exp(value - top) / total - tl.where(column == label, 1.0, 0.0)
        place = dlogits + row * width + column
        tl.store(place, (slope * scale).to(dlogits.dtype.element_ty), mask=inside)


def cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int = -100, reduction: int | str = "mean"
) -> Tensor:
    """The mean loss of rows of logits [rows, classes] against classes [rows]."""
    _fits(logits, target, reduction)
    logits, target = logits.contiguous(), target.contiguous()
    losses = torch.empty(len(logits), device=logits.device)
    width = logits.shape[1]
    _forward[(len(logits),)](logits, target, losses, width, ignore_index, BLOCK=_block(width))
    return (losses.sum() / (target != ignore_index).sum()).to(logits.dtype)


def cross_entropy_backward(
    grad: Tensor, logits: Tensor, target: Tensor, ignore_index: int = -100
) -> tuple[Tensor, ...]:
    """The gradient of the logits."""
    logits, target = logits.contiguous(), target.contiguous()
    each = (grad.float() / (target != ignore_index).sum()).contiguous()
    dlogits = torch.empty_like(logits)
    width = logits.shape[1]
    _backward[(len(logits),)](
        each, logits, target, dlogits, width, ignore_index, BLOCK=_block(width)
    )
    return (dlogits,)


def cross_entropy_reference(logits: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """The same in plain torch."""
    return F.cross_entropy(logits, target, ignore_index=ignore_index)


def _block(width: int) -> int:
    return min(BLOCK, triton.next_power_of_2(width))


def _fits(logits: Tensor, target: Tensor, reduction: int | str) -> None:
    if reduction not in (1, "mean"):
        raise ValueError(f"the mean alone is computed, and `reduction` is {reduction!r}")
    if logits.dim() != 2 or target.shape != logits.shape[:1]:
        raise ValueError(f"logits of {tuple(logits.shape)}, targets of {tuple(target.shape)}")
