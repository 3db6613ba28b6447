"""What a verified run keeps of live objects: tensors in nested values, settings, random numbers.

Copies lie on the CPU, detached and dense. Knows how a value is copied and given back; when that is
done is `verifying.py`.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import Optimizer

from sgplan.interpreter.moments import Tensors
from sgplan.interpreter.roots import Root
from sgplan.planner import torch_api

PLAIN = (bool, int, float, str)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""What the words for an object say of one process only."""
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


# --- tensors -------------------------------------------------------------------------------------


def kept(tensors: Mapping[str, torch.Tensor | None]) -> Tensors:
    """Copies of their values now; what no copy can be made of is left out (`not_kept`)."""
    return {
        name: None if tensor is None else _copy(tensor)
        for name, tensor in tensors.items()
        if tensor is None or _can_be_kept(tensor)
    }


def not_kept(quantity: str, tensors: Mapping[str, torch.Tensor | None]) -> list[str]:
    """What `kept` leaves out, a sentence each."""
    return [
        f"{quantity} `{name}` is not compared: its layout is {tensor.layout}"
        for name, tensor in tensors.items()
        if tensor is not None and not _can_be_kept(tensor)
    ]


def _can_be_kept(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided or tensor.layout in _SPARSE


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.detach()
    if found.layout in _SPARSE:
        found = found.to_dense()
    return found.to("cpu", copy=True)


def overwrite(ours: Mapping[str, torch.Tensor], theirs: Tensors) -> None:
    """Give our tensors the reference's values, unseen by autograd."""
    for name, tensor in ours.items():
        value = theirs.get(name)
        if value is not None and value.shape == tensor.shape:
            tensor.data.copy_(value)


def overwrite_gradients(
    parameters: Mapping[str, torch.Tensor], theirs: Tensors, scale: torch.Tensor | None
) -> None:
    """Give parameters the reference's gradients.

    Args:
        scale: what a GradScaler has multiplied ours by; theirs are without.
    """
    for name, parameter in parameters.items():
        value = theirs.get(name)
        if value is None:
            parameter.grad = None
            continue
        value = value.to(parameter.device)
        if scale is not None:
            value = value * scale.to(value.device)
        if parameter.grad is None:
            parameter.grad = value.to(parameter.dtype)
        elif parameter.grad.layout is torch.strided:
            parameter.grad.data.copy_(value)
        else:  # where it has rows; that the rows are the same ones was compared before
            rows = parameter.grad.coalesce()
            parameter.grad = value.to(rows.dtype).sparse_mask(rows)


def unscaled(
    gradients: Mapping[str, torch.Tensor | None], scale: torch.Tensor | None
) -> dict[str, torch.Tensor | None]:
    """Gradients as `torch.amp.GradScaler.unscale_` makes them.

    Args:
        scale: what a fused step would divide them by; None where they are not scaled.
    """
    if scale is None:
        return dict(gradients)
    inverse = scale.double().reciprocal().float()
    return {
        name: None if value is None else value.detach() * inverse.to(value.device)
        for name, value in gradients.items()
    }


def all_finite(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether no value is infinite or NaN."""
    given = (tensor for tensor in tensors if tensor is not None)
    return all(bool(torch.isfinite(_copy(tensor)).all()) for tensor in given)


def differing(before: Tensors, now: Tensors) -> list[str]:
    """Names of what is not the same any more, bit for bit but for the sign of zero."""
    return [
        name
        for name in {**before, **now}
        if (one := before.get(name)) is None
        or (other := now.get(name)) is None
        or not _equal(one, other)
    ]


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Value for value; not a number is equal to itself."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if not one.is_floating_point() and not one.is_complex():
        return torch.equal(one, other)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def mark(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """Changes whenever a gradient is written or replaced."""
    return None if gradient is None else (id(gradient), gradient._version)


def tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested lists, mappings, dataclasses and plain objects, by its path."""
    yield from _tensors(value, "", set())


def _tensors(value: Any, path: str, above: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path or "0", value
        return
    if id(value) in above:
        return
    within = above | {id(value)}
    for name, inner in _parts(value):
        yield from _tensors(inner, f"{path}.{name}" if path else str(name), within)


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name)) for field in fields(value))
    if isinstance(value, (type, nn.Module, ModuleType, FunctionType)):
        return ()
    return getattr(value, "__dict__", {}).items()


# --- models and optimizers -----------------------------------------------------------------------


def state_of(root: Root) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a root; they share memory with the module's."""
    module = root.module
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The numbers and words of every group; how a step is computed is the plan's."""
    own = ("params", "fused", "foreach")
    return [
        {name: _plain(value) for name, value in group.items() if name not in own}
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return value if isinstance(value, PLAIN) else _ADDRESS.sub("", str(value))


def formats(root: Root, outputs: Iterable[torch.Tensor]) -> set[str]:
    """The number formats that a call of a root computed in.

    Those of its parameters, frozen ones too, of its outputs, and of every value between them that
    has a gradient: what autocast or the script's own conversions made inside is seen there.
    """
    given = list(outputs)
    found = {tensor.dtype for tensor in [*root.module.parameters(), *given]}
    found |= torch_api.formats_behind(given)
    return {_word(kind) for kind in found if kind.is_floating_point}


def graph_formats(gm: torch.fx.GraphModule) -> set[str]:
    """The number formats of the values in a Dynamo graph."""
    values = (node.meta.get("example_value") for node in gm.graph.nodes)
    found = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return {_word(kind) for kind in found if kind.is_floating_point}


def _word(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


# --- random numbers ------------------------------------------------------------------------------


def random_state() -> list[Any]:
    """Of all generators that scripts share, as plain data."""
    kind, keys, position, has_gauss, cached = numpy.random.get_state()  # pyright: ignore[reportGeneralTypeIssues]
    version, words, gauss = random.getstate()
    return [
        torch.get_rng_state(),
        [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        [version, list(words), gauss],
    ]


def set_random_state(state: list[Any]) -> None:
    """Put all generators where `random_state` found them."""
    drawn, (kind, keys, position, has_gauss, cached), (version, words, gauss) = state
    torch.set_rng_state(drawn)
    keys = numpy.array(keys, dtype=numpy.uint32)
    numpy.random.set_state((kind, keys, position, has_gauss, cached))
    random.setstate((version, tuple(words), gauss))


def random_digest() -> dict[str, str]:
    """Digests of the states of all generators that scripts share, by library."""
    drawn, numbers, words = random_state()
    found = {
        "torch": drawn.numpy().tobytes(),
        "numpy": repr(numbers).encode(),
        "random": repr(words).encode(),
    }
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in found.items()}
