"""The syntax tree: what was written, with places and without meaning.

Nodes compare by content: spans, comments and the way a string was escaped do not count, so that a
printed and parsed again tree is equal. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sgplan.grammar.diagnostics import Span


@dataclass(frozen=True, slots=True)
class Name:
    """A bare name, where it stands."""

    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Quantity:
    """Anything that starts with a digit: `25MiB`, `1f1b`, `1e-6`; its attribute reads it."""

    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A quoted string, escapes resolved."""

    value: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Range:
    """`0..199`, `200..`, `..4`."""

    low: Quantity | None
    high: Quantity | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Member:
    """`.name` or `::name` behind a reference."""

    separator: Literal[".", "::"]
    name: Name
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Index:
    """`[0]`, `["input_ids"]` or `[*]` behind a reference; None is the star."""

    key: Quantity | Text | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call, with its name if it has one."""

    name: Name | None
    value: Value
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(…)` behind a reference."""

    items: tuple[Argument, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Ref:
    """A word, an op, a path or a call: a name and what follows it."""

    name: Name
    trailers: tuple[Member | Index | Arguments, ...]
    span: Span = field(compare=False)

    @property
    def word(self) -> str | None:
        """The name when nothing follows it."""
        return None if self.trailers else self.name.text

    @property
    def dotted(self) -> str | None:
        """The text when only names follow (`aten.add.Tensor`, `mylib::scan`)."""
        parts = [self.name.text]
        for trailer in self.trailers:
            if not isinstance(trailer, Member):
                return None
            parts.append(trailer.separator + trailer.name.text)
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Scoped:
    """`"layers.*"::aten.gelu`."""

    glob: Text
    ref: Ref
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Items:
    """`[…]`."""

    values: tuple[Value, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Either:
    """`a | b`."""

    choices: tuple[Value, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Chain:
    """`a -> b`, along the data flow."""

    steps: tuple[Value, ...]
    span: Span = field(compare=False)


Value = Quantity | Text | Range | Ref | Scoped | Items | Either | Chain


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name = value`."""

    name: Name
    value: Value
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """`kind "label" { … }`; `head` is the place of kind and label."""

    kind: Name
    label: Text | None
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)
    head: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Override:
    """`override "label" { … }`: conditions and blocks, in any order."""

    label: Text
    members: tuple[Attribute | Block, ...]
    span: Span = field(compare=False)
    head: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Let:
    """`let name = value`."""

    name: Name
    value: Value
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Comment:
    """`# …`, to the end of its line."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Document:
    """One file."""

    version: Quantity
    items: tuple[Let | Block | Override, ...]
    comments: tuple[Comment, ...] = field(compare=False)
    source: str = field(compare=False)
    text: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One `--set kind.label.attr=value`."""

    path: tuple[Name, ...]
    value: Value
    span: Span = field(compare=False)
