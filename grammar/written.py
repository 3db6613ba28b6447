"""Blocks as they were written: attributes with values and places, before merging and defaults.

This module knows how a checked block travels (wire form) and how blocks of the file, overrides and
`--set` are laid over one another. It knows no defaults and no world size. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from sgplan.grammar.diagnostics import Diagnostic, Label, Span
from sgplan.grammar.literals import VALUE_CLASSES, Interval

_VALUE_CLASS = {cls.__name__: cls for cls in VALUE_CLASSES}

Key = tuple[str, str | None]


def value_to_wire(value: Any) -> Any:
    """Plain data for one value of an attribute: scalars, lists, and maps that name their class."""
    if isinstance(value, tuple):
        return [value_to_wire(item) for item in cast("tuple[Any, ...]", value)]
    if isinstance(value, VALUE_CLASSES):
        content = {name: value_to_wire(getattr(value, name)) for name in _fields(type(value))}
        return {"class": type(value).__name__, **content}
    return value


def value_from_wire(data: Any) -> Any:
    """The inverse of `value_to_wire`."""
    if isinstance(data, list | tuple):
        return tuple(value_from_wire(item) for item in cast("Sequence[Any]", data))
    if isinstance(data, dict):
        content = dict(cast("dict[str, Any]", data))
        cls = _VALUE_CLASS[content.pop("class")]
        return cls(**{name: value_from_wire(item) for name, item in content.items()})
    return data


def _fields(cls: Any) -> list[str]:
    return [f.name for f in fields(cls)]


@dataclass(frozen=True, slots=True)
class Setting:
    """One attribute as written.

    Attributes:
        name: as in the language (`in`, not `in_`).
        value: in the form of the block's class.
        span: `name = value`.
        value_span: the value alone.
    """

    name: str
    value: Any
    span: Span
    value_span: Span

    def to_wire(self) -> list[Any]:
        spans = [self.span.to_wire(), self.value_span.to_wire()]
        return [self.name, value_to_wire(self.value), *spans]

    @staticmethod
    def from_wire(data: Sequence[Any]) -> Setting:
        name, value, span, value_span = data
        return Setting(name, value_from_wire(value), Span(*span), Span(*value_span))


@dataclass(frozen=True, slots=True)
class WrittenBlock:
    """One block as written, or several laid over one another.

    Attributes:
        kind, label: its address.
        span: kind and label.
        settings: in the order written; a name occurs once.
    """

    kind: str
    label: str | None
    span: Span
    settings: tuple[Setting, ...] = ()

    @property
    def key(self) -> Key:
        return (self.kind, self.label)

    @property
    def address(self) -> str:
        return self.kind if self.label is None else f"{self.kind}.{self.label}"

    def get(self, name: str) -> Setting | None:
        """The setting of that name, None when it is not written."""
        return next((setting for setting in self.settings if setting.name == name), None)

    def value(self, name: str, default: Any) -> Any:
        """The written value, else the default."""
        setting = self.get(name)
        return default if setting is None else setting.value

    def laid_over(self, below: WrittenBlock | None) -> WrittenBlock:
        """This block's attributes over those of `below`; the place stays where it was first."""
        if below is None:
            return self
        merged = {setting.name: setting for setting in (*below.settings, *self.settings)}
        return WrittenBlock(self.kind, self.label, below.span, tuple(merged.values()))

    def to_wire(self) -> list[Any]:
        settings = [setting.to_wire() for setting in self.settings]
        return [self.kind, self.label, self.span.to_wire(), settings]

    @staticmethod
    def from_wire(data: Sequence[Any]) -> WrittenBlock:
        kind, label, span, settings = data
        return WrittenBlock(kind, label, Span(*span), tuple(map(Setting.from_wire, settings)))


@dataclass(frozen=True, slots=True)
class WrittenOverride:
    """Blocks that hold only in some worlds.

    Attributes:
        label, span: `override "label"`.
        world: sizes it holds for, None for all.
        device: device type it holds for, None for all.
        blocks: what it sets.
    """

    label: str
    span: Span
    world: Interval | None
    device: str | None
    blocks: tuple[WrittenBlock, ...]

    @property
    def key(self) -> Key:
        return ("override", self.label)

    def holds(self, world: int, device: str) -> bool:
        """Whether the override is active there."""
        return (self.world is None or world in self.world) and self.device in (None, device)

    def to_wire(self) -> list[Any]:
        blocks = [block.to_wire() for block in self.blocks]
        world = value_to_wire(self.world)
        return [self.label, self.span.to_wire(), world, self.device, blocks]

    @staticmethod
    def from_wire(data: Sequence[Any]) -> WrittenOverride:
        label, span, world, device, blocks = data
        blocks = tuple(map(WrittenBlock.from_wire, blocks))
        return WrittenOverride(label, Span(*span), value_from_wire(world), device, blocks)


Layer = dict[Key, WrittenBlock]


def lay_over(below: Layer, blocks: Iterable[WrittenBlock]) -> Layer:
    """Every block laid over the one of the same kind and label."""
    merged = dict(below)
    for block in blocks:
        merged[block.key] = block.laid_over(merged.get(block.key))
    return merged


def override_conflicts(active: Iterable[WrittenOverride]) -> list[Diagnostic]:
    """Attributes that two overrides set, both active."""
    first: dict[tuple[Key, str], tuple[WrittenOverride, Setting]] = {}
    found: list[Diagnostic] = []
    for override in active:
        for block in override.blocks:
            for setting in block.settings:
                place = (block.key, setting.name)
                earlier, where = first.setdefault(place, (override, setting))
                if earlier is not override:
                    address = f"{block.address}.{setting.name}"
                    found.append(_conflict(address, override, setting, earlier, where))
    return found


def _conflict(
    address: str,
    later: WrittenOverride,
    setting: Setting,
    earlier: WrittenOverride,
    where: Setting,
) -> Diagnostic:
    return Diagnostic(
        code="SG0226",
        message=f"overrides `{earlier.label}` and `{later.label}` both set `{address}`",
        primary=Label(setting.span, "set a second time"),
        secondary=(Label(where.span, f"set first in override `{earlier.label}`"),),
        notes=("there is a world and device for which both overrides hold",),
        help=f"narrow `world` or `device` of one of them, or set `{address}` in one place",
    )
