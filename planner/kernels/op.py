"""A kernel as a custom op of torch: its fake, what it does on each device, its gradient.

On a GPU it starts the kernel; on the CPU, where Triton has nothing to start, it computes the
reference, or interprets the kernel when the process runs under `TRITON_INTERPRET=1`. Its gradient
is the kernel's own backward where there is one and a GPU to run it, else that of the reference.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import library

NAMESPACE = "sgplan_kernels"

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Calling:
    """How a kernel's functions are called at a site.

    Attributes:
        given: for each positional argument, whether it is a tensor; None stands for the others.
        constants: offered by name, to functions that have such a parameter.
    """

    given: tuple[bool, ...]
    constants: Mapping[str, Any]

    def bound(self, function: Callable[..., Any]) -> Callable[..., Tensors]:
        """The function of the given tensors, returning a tuple."""
        chosen = _accepted(function, self.constants)

        def call(*tensors: torch.Tensor) -> Tensors:
            before = len(tensors) - sum(self.given)  # gradients come first, and are always there
            left = iter(tensors[before:])
            arguments = [next(left) if is_tensor else None for is_tensor in self.given]
            with _without_autocast(tensors):
                result = function(*tensors[:before], *arguments, **chosen)
            values = result if isinstance(result, tuple) else (result,)
            for value in values:
                if not isinstance(value, torch.Tensor):
                    name, kind = getattr(function, "__name__", "it"), type(value).__name__
                    raise TypeError(f"`{name}` returns a {kind} where a tensor is wanted")
            return values

        return call


def _without_autocast(tensors: Sequence[torch.Tensor]) -> AbstractContextManager[object]:
    """The casts of autocast are ops of the script already."""
    device = tensors[0].device.type if tensors else "cpu"
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _accepted(function: Callable[..., Any], constants: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in constants.items() if name in parameters}


@dataclass(frozen=True, slots=True)
class Parts:
    """What an op is made of; every function takes the given tensors and returns a tuple.

    Attributes:
        backward: takes the gradients before them.
        count: how many tensors `kernel` and `reference` return.
        floating: of the tensors, whether they can have a gradient.
    """

    kernel: Callable[..., Tensors]
    reference: Callable[..., Tensors]
    backward: Callable[..., Tensors] | None
    count: int
    floating: tuple[bool, ...]


_made: dict[str, torch._ops.OpOverload] = {}


def made_op(name: str, parts: Parts) -> torch._ops.OpOverload:
    """The op of that name; registered once in a process, whoever asks.

    Args:
        name: says everything the op depends on, by a digest.
    """
    if name not in _made:
        _made[name] = _register(name, parts)
    return _made[name]


def _register(name: str, parts: Parts) -> torch._ops.OpOverload:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    inputs, own = len(parts.floating), None
    on_cpu = parts.kernel if interpreted else parts.reference
    op = _defined(name, inputs, parts.count, parts.kernel, on_cpu, parts.reference)
    if parts.backward is not None:
        own = _defined(
            f"{name}_backward",
            parts.count + inputs,
            sum(parts.floating),
            parts.backward,
            parts.backward,
            lambda *tensors: tuple(_wanted(tensors[parts.count :], parts.floating)),
        )

    def keep(ctx: Any, inputs: Tensors, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def gradient(ctx: Any, *grads: torch.Tensor) -> Any:
        tensors = (*(grad.contiguous() for grad in grads), *ctx.saved_tensors)
        if own is not None and (interpreted or grads[0].device.type != "cpu"):
            found = _several(own(*tensors))
        else:
            found = gradients(parts.reference, parts.floating, tensors)
        left = iter(found)
        return tuple(next(left) if floats else None for floats in parts.floating)

    op.register_autograd(gradient, setup_context=keep)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _defined(
    name: str,
    inputs: int,
    outputs: int,
    on_gpu: Callable[..., Tensors],
    on_cpu: Callable[..., Tensors],
    like: Callable[..., Tensors],
) -> Any:
    arguments = ", ".join(f"Tensor t{place}" for place in range(inputs))
    returned = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"

    def one_or_more(values: Iterable[torch.Tensor]) -> Any:
        found = tuple(values)
        return found[0] if outputs == 1 else found

    def real(function: Callable[..., Tensors]) -> Callable[..., Any]:
        return lambda *tensors: one_or_more(_fresh(v, tensors) for v in function(*tensors))

    def fake(*tensors: torch.Tensor) -> Any:
        return one_or_more(value.new_empty(value.shape) for value in like(*tensors))

    op = library.custom_op(
        f"{NAMESPACE}::{name}",
        real(on_gpu),
        mutates_args=(),
        device_types="cuda",
        schema=f"({arguments}) -> {returned}",
    )
    op.register_kernel("cpu")(real(on_cpu))
    op.register_fake(fake)
    return op


def _fresh(value: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Contiguous memory of its own: what every implementation returns, and the fake promises."""
    value = value.contiguous()
    memory = value.untyped_storage().data_ptr()
    aliases = any(memory == tensor.untyped_storage().data_ptr() for tensor in inputs)
    return value.clone() if aliases else value


def gradients(
    reference: Callable[..., Tensors], floating: Sequence[bool], tensors: Sequence[torch.Tensor]
) -> Tensors:
    """What autograd makes of a reference.

    Args:
        floating: of its tensors, which want a gradient.
        tensors: a gradient for each value that it returns, then its tensors.
    """
    count = len(tensors) - len(floating)
    leaves = [
        tensor.detach().requires_grad_(floats)
        for tensor, floats in zip(tensors[count:], floating, strict=True)
    ]
    with torch.enable_grad():
        values = reference(*leaves)
    wanted = _wanted(leaves, floating)
    pairs = [(v, g) for v, g in zip(values, tensors, strict=False) if v.requires_grad]
    if not pairs:
        return tuple(map(torch.zeros_like, wanted))
    made, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(made, wanted, given, allow_unused=True)
    return tuple(
        torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted, strict=True)
    )


def _wanted(tensors: Sequence[torch.Tensor], floating: Sequence[bool]) -> list[torch.Tensor]:
    return [tensor for tensor, floats in zip(tensors, floating, strict=True) if floats]


def _several(value: Any) -> Tensors:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)
