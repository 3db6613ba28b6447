"""Frozen dataclasses as plain data and back, driven by their type hints.

What msgpack and JSON can carry comes out; what goes in is checked strictly: an unknown or missing
field, or a value of another type, is an error that names the path to it. Knows no particular class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, reduce
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

KIND = "is"


class WireError(ValueError):
    """Plain data that does not fit its class."""


@dataclass(frozen=True, slots=True)
class _Codec:
    encode: Callable[[Any], Any]
    decode: Callable[[Any, str], Any]


def encode(value: Any) -> Any:
    """A dataclass instance as plain data: a map of its fields."""
    return _codec(cast(Any, type(value))).encode(value)


def decode(cls: type[T], data: Any) -> T:
    """The inverse of `encode` for a value of `cls`.

    Raises:
        WireError: the data does not fit; the message names the field.
    """
    return _codec(cls).decode(data, cls.__name__)


@cache
def _codec(hint: Any) -> _Codec:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _union(get_args(hint))
    if origin is tuple:
        return _tuple(get_args(hint))
    if origin is Literal:
        return _literal(get_args(hint))
    if is_dataclass(hint):
        return _dataclass(cast(type, hint))
    return _plain(hint)


def _plain(cls: type) -> _Codec:
    def decode(data: Any, path: str) -> Any:
        # `True` is an `int` to Python and not to a reader.
        if not isinstance(data, cls) or (isinstance(data, bool) and cls is not bool):
            raise WireError(f"{path} is {_kind_of(data)}, expected {cls.__name__}")
        return data

    return _Codec(lambda value: value, decode)


def _literal(choices: tuple[Any, ...]) -> _Codec:
    def decode(data: Any, path: str) -> Any:
        if data not in choices:
            raise WireError(f"{path} is `{data}`, expected one of {', '.join(map(str, choices))}")
        return data

    return _Codec(lambda value: value, decode)


def _tuple(arguments: tuple[Any, ...]) -> _Codec:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _many(_codec(arguments[0]))
    items = [_codec(argument) for argument in arguments]

    def decode(data: Any, path: str) -> Any:
        values = _list(data, path)
        if len(values) != len(items):
            raise WireError(f"{path} has {len(values)} items, expected {len(items)}")
        parts = zip(items, values, strict=True)
        return tuple(item.decode(v, f"{path}[{i}]") for i, (item, v) in enumerate(parts))

    def encode(value: Any) -> Any:
        return [item.encode(v) for item, v in zip(items, value, strict=True)]

    return _Codec(encode, decode)


def _many(item: _Codec) -> _Codec:
    def decode(data: Any, path: str) -> Any:
        values = enumerate(_list(data, path))
        return tuple(item.decode(value, f"{path}[{i}]") for i, value in values)

    return _Codec(lambda value: [item.encode(v) for v in value], decode)


def _list(data: Any, path: str) -> list[Any]:
    if not isinstance(data, (list, tuple)):
        raise WireError(f"{path} is {_kind_of(data)}, expected a list")
    return list(cast("list[Any]", data))


def _union(members: tuple[Any, ...]) -> _Codec:
    """`X | None`, or classes told apart by a tag."""
    if NoneType in members:
        rest = [member for member in members if member is not NoneType]
        inner = _codec(reduce(lambda a, b: a | b, rest))
        return _Codec(
            lambda value: None if value is None else inner.encode(value),
            lambda data, path: None if data is None else inner.decode(data, path),
        )
    codecs = {member.__name__: _codec(member) for member in members}

    def encode(value: Any) -> Any:
        name = type(value).__name__
        return {KIND: name, **codecs[name].encode(value)}

    def decode(data: Any, path: str) -> Any:
        name = _map(data, path).get(KIND)
        if name not in codecs:
            raise WireError(f"{path} is of the unknown kind `{name}`")
        return codecs[name].decode({k: v for k, v in data.items() if k != KIND}, path)

    return _Codec(encode, decode)


def _map(data: Any, path: str) -> dict[Any, Any]:
    if not isinstance(data, dict):
        raise WireError(f"{path} is {_kind_of(data)}, expected a map")
    return cast("dict[Any, Any]", data)


def _dataclass(cls: type) -> _Codec:
    hints = get_type_hints(cls)
    codecs = {f.name: _codec(hints[f.name]) for f in fields(cls)}
    required = {f.name for f in fields(cls) if f.default is MISSING}

    def encode(value: Any) -> Any:
        return {name: codec.encode(getattr(value, name)) for name, codec in codecs.items()}

    def decode(data: Any, path: str) -> Any:
        found = _map(data, path)
        if unknown := [key for key in found if key not in codecs]:
            raise WireError(f"{path} has the unknown field `{unknown[0]}`")
        if missing := sorted(required - found.keys()):
            raise WireError(f"{path} lacks the field `{missing[0]}`")
        return cls(**{k: codecs[k].decode(v, f"{path}.{k}") for k, v in found.items()})

    return _Codec(encode, decode)


def _kind_of(data: Any) -> str:
    return "nothing" if data is None else type(data).__name__
