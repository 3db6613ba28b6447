"""Compares what two jobs trained. Knows tensors and tolerances, not jobs or engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor that is not bitwise equal.

    Attributes:
        name: of the tensor.
        relative: largest difference over the largest absolute value of the reference.
    """

    name: str
    relative: float

    def __str__(self) -> str:
        return f"{self.name} differs by {self.relative:.1e} of its largest value"


def differences(reference: Tensors, candidate: Tensors) -> list[Difference]:
    """Every tensor that is not bitwise equal, the worst first.

    Raises:
        AssertionError: names, shapes or dtypes differ; no tolerance covers that.
    """
    assert list(reference) == list(candidate)
    found = [
        Difference(name, relative(tensor, candidate[name]))
        for name, tensor in reference.items()
        if not same_bits(tensor, candidate[name])
    ]
    return sorted(found, key=lambda difference: -difference.relative)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bytes, so that a NaN equals itself and -0.0 does not equal 0.0."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    return torch.equal(_bytes(a), _bytes(b))


def relative(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest absolute value of `a`; infinite when it is no number."""
    gap = (a.double() - b.double()).abs().max().item()
    scale = a.double().abs().max().item()
    value = gap / scale if scale else (0.0 if gap == 0 else float("inf"))
    return value if value == value else float("inf")


def worst_against_largest(reference: Tensors, candidate: Tensors) -> float:
    """Largest difference of any tensor over the largest absolute value of all of them."""
    assert list(reference) == list(candidate)
    scale = max(tensor.double().abs().max().item() for tensor in reference.values())
    gaps = (
        (tensor.double() - candidate[name].double()).abs().max().item()
        for name, tensor in reference.items()
    )
    return max(gaps) / scale


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
