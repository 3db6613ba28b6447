"""What a guard's path leads to in one call: a size, a type, a device, a value, an attribute.

Knows signatures and tensors; knows nothing of plans beyond the path, and judges no value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from sgplan.grammar.plan import GuardPath
from sgplan.interpreter.arguments import MISSING, Argument, NotThere, by_name, by_place
from sgplan.planner.capture.provenance import attribute_sources

Read = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_PLAIN = (bool, int, float, str)
_TYPES = {
    value: str(value).removeprefix("torch.")
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def reader(path: GuardPath, module: nn.Module) -> Read:
    """What reads a path in a call of a module; the value is a number, a bool, a word or None.

    None stands for an argument that is None; several different values for a tuple.

    Raises:
        NotThere: no call of the module can have it.
    """
    if path.what == "attribute":
        return _attribute(path, module)
    if path.input == "*":
        return _all_tensors(path)
    argument = _argument(path, module)
    if path.what == "value":

        def value(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return _plain(argument(args, kwargs), path)

        return value
    what = _of_tensor(path)

    def of_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = argument(args, kwargs)
        if isinstance(tensor, torch.Tensor):
            return what(tensor)
        if tensor is None:
            return None
        raise NotThere(f"`{path}` asks a tensor, and the argument is a {type(tensor).__name__}")

    return of_tensor


def _of_tensor(path: GuardPath) -> Callable[[torch.Tensor], Any]:
    if path.what == "dtype":
        return lambda tensor: _TYPES[tensor.dtype]
    if path.what == "device":
        return lambda tensor: tensor.device.type
    dim = path.dim
    assert dim is not None

    def size(tensor: torch.Tensor) -> int:
        try:
            return tensor.shape[dim]
        except IndexError:
            raise NotThere(f"`{path}` asks a tensor of {tensor.dim()} dims") from None

    return size


def _argument(path: GuardPath, module: nn.Module) -> Read:
    """What finds the argument, however the call passes it."""
    argument = _named(path, module)
    find = argument.read

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = find(args, kwargs)
        if found is MISSING:
            raise NotThere(f"`{path}` is not among the arguments of this call")
        return found

    return read


def _named(path: GuardPath, module: nn.Module) -> Argument:
    assert path.input is not None
    try:
        return Argument.of(path.input, module)
    except NotThere as error:
        raise NotThere(f"`{path}` {error}") from None


def _all_tensors(path: GuardPath) -> Read:
    what, dim = _of_tensor(path), path.dim

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [*args, *kwargs.values()] if kwargs else args
        # Asked in every call: names are made only where arguments are lists and dicts.
        for value in given:
            if isinstance(value, (list, tuple, dict)):
                given = [tensor for _, tensor in tensors(args, kwargs)]
                break
        found = [
            what(value)
            for value in given
            if isinstance(value, torch.Tensor)
            and (dim is None or -value.dim() <= dim < value.dim())
        ]
        if not found:
            raise NotThere(f"`{path}`: no tensor of this call has that")
        return found[0] if found.count(found[0]) == len(found) else tuple(found)

    return read


def tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor argument, one level into lists and dicts, by the name Dynamo has for it."""
    given = itertools.chain(
        ((by_place(place), value) for place, value in enumerate(args)),
        ((by_name(name), value) for name, value in kwargs.items()),
    )
    for source, value in given:
        if isinstance(value, torch.Tensor):
            yield source, value
        elif isinstance(value, dict):
            inner = ((f"{source}[{k!r}]", v) for k, v in value.items())
            yield from ((s, v) for s, v in inner if isinstance(v, torch.Tensor))
        elif isinstance(value, (list, tuple)):
            inner = ((f"{source}[{k}]", v) for k, v in enumerate(value))
            yield from ((s, v) for s, v in inner if isinstance(v, torch.Tensor))


def _attribute(path: GuardPath, module: nn.Module) -> Read:
    """Looked up from the root in every call: a script may put another module in its place."""
    assert path.attribute is not None
    find = attrgetter(".".join(filter(None, (str(path.input), path.attribute))))

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return _plain(find(module), path)
        except AttributeError as error:
            raise NotThere(f"`{path}`: {error}") from None

    read((), {})
    return read


def _plain(value: Any, path: GuardPath) -> Any:
    if value is None or type(value) in _PLAIN:
        return value
    raise NotThere(f"`{path}` is a {type(value).__name__}: no number, word or switch")


def sources(
    path: GuardPath, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
) -> dict[str, list[bool] | None]:
    """What varies with the watched value, as `torch_api.varies` takes it.

    Of a size: every dim of every tensor argument that has this size in the call, because what is
    computed together has it in common. Of an attribute: the names under which Dynamo may know it.
    """
    if path.what == "shape":
        found = {s: [size == value for size in t.shape] for s, t in tensors(args, kwargs)}
        return {source: dims for source, dims in found.items() if any(dims)}
    if path.what == "value":
        return dict.fromkeys(_named(path, module).sources)
    assert path.attribute is not None
    return dict.fromkeys(attribute_sources(str(path.input), path.attribute))
