"""Tokens of a text that may be broken: never fails.

The parser has its own lexer; this scanner serves what the parser cannot: naming a fault from the
tokens around it, and keeping comments for the formatter. It knows no grammar.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from sgplan.grammar.diagnostics import Span

TokenKind = Literal["name", "quantity", "string", "mark", "comment", "unclosed", "single", "other"]

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<unclosed>"(?:\\.|[^"\\\n])*)
    | (?P<single>'[^'\n]*'?)
    | (?P<quantity>-?[0-9](?:[A-Za-z0-9_%/]|\.(?!\.)|(?<=[eE])[-+])*)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>->|\.\.|::|\*\*|[{}\[\]()=,|.*%/:;])
    | (?P<other>[^\ \t\r\n])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token and its place."""

    kind: TokenKind
    text: str
    span: Span


class Places:
    """Turns offsets of one text into spans."""

    def __init__(self, source: str, text: str) -> None:
        self._source = source
        self._starts = [0, *(i + 1 for i, character in enumerate(text) if character == "\n")]

    def span(self, start: int, end: int) -> Span:
        """The span of `text[start:end]`."""
        line = bisect_right(self._starts, start)
        return Span(self._source, start, end, line, start - self._starts[line - 1] + 1)


def scan(text: str, places: Places) -> list[Token]:
    """Every token, comments included."""
    return [
        Token(match.lastgroup, match.group(), places.span(*match.span()))  # pyright: ignore[reportArgumentType]
        for match in _TOKEN.finditer(text)
    ]


def through(first: Span, last: Span) -> Span:
    """From the start of one span to the end of another."""
    return Span(first.source, first.start, last.end, first.line, first.column)
