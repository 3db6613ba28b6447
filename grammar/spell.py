"""Nodes on one line, in the canonical spelling. Knows nothing of width, lines and comments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgplan.grammar import ast

GAP = "  "


def spell(value: ast.Value) -> str:
    """A value of an attribute."""
    return _SPELLINGS[type(value)](value)


def quoted(text: str) -> str:
    """A string with its quotes and escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def spell_attribute(node: ast.Attribute) -> str:
    """`name = value`."""
    return f"{node.name.text} = {spell(node.value)}"


def spell_head(node: ast.Block | ast.Override) -> str:
    """Kind and label."""
    kind = "override" if isinstance(node, ast.Override) else node.kind.text
    return kind if node.label is None else f"{kind} {quoted(node.label.value)}"


def spell_body(node: ast.Block | ast.Override) -> str:
    """Braces and all between them, on one line."""
    members = node.members if isinstance(node, ast.Override) else node.attributes
    inside = GAP.join(
        spell_attribute(member)
        if isinstance(member, ast.Attribute)
        else f"{spell_head(member)} {spell_body(member)}"
        for member in members
    )
    return f"{{ {inside} }}" if inside else "{ }"


def _range(node: ast.Range) -> str:
    ends = ("" if end is None else end.text for end in (node.low, node.high))
    return "..".join(ends)


def _ref(node: ast.Ref) -> str:
    return node.name.text + "".join(_TRAILERS[type(trailer)](trailer) for trailer in node.trailers)


def _index(node: ast.Index) -> str:
    return "[*]" if node.key is None else f"[{spell(node.key)}]"


def _arguments(node: ast.Arguments) -> str:
    return f"({', '.join(map(_argument, node.items))})"


def _argument(node: ast.Argument) -> str:
    name = "" if node.name is None else f"{node.name.text} = "
    return name + spell(node.value)


_TRAILERS: dict[type, Callable[[Any], str]] = {
    ast.Member: lambda node: node.separator + node.name.text,
    ast.Index: _index,
    ast.Arguments: _arguments,
}

_SPELLINGS: dict[type, Callable[[Any], str]] = {
    ast.Quantity: lambda node: node.text,
    ast.Text: lambda node: quoted(node.value),
    ast.Range: _range,
    ast.Ref: _ref,
    ast.Scoped: lambda node: f"{quoted(node.glob.value)}::{_ref(node.ref)}",
    ast.Items: lambda node: f"[{', '.join(map(spell, node.values))}]",
    ast.Either: lambda node: " | ".join(map(spell, node.choices)),
    ast.Chain: lambda node: " -> ".join(map(spell, node.steps)),
}
