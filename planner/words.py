"""Words and lines of the program's text form: quoting, tokens, a cursor, columns, origins.

Knows spelling only, no instruction. A word that is not plain is quoted as JSON, so that any name a
script can make goes through text and back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sgplan.grammar.diagnostics import Span
from sgplan.planner.program import Origin

_PLAIN = re.compile(r"[A-Za-z0-9_.:/\[\]*+@$-]+\Z")
_TOKEN = re.compile(
    r'\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<mark>->|[(),=#])|(?P<plain>[^\s"(),=#]+))'
)
GAP = "   "


class TextError(ValueError):
    """A line of program text that does not parse; the message quotes it."""


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    quoted: bool = False


def word(text: str) -> str:
    """The text as one word."""
    if _PLAIN.match(text) and "->" not in text:
        return text
    return json.dumps(text)


def words(texts: Iterable[str], between: str = " ") -> str:
    return between.join(map(word, texts))


def sizes(values: Iterable[int]) -> str:
    """A shape or strides: `4x320`, or `scalar`."""
    return "x".join(map(str, values)) or "scalar"


def tokens(line: str) -> list[Token]:
    """The tokens of one line.

    Raises:
        TextError: a quote is not closed.
    """
    found: list[Token] = []
    at, end = 0, len(line.rstrip())
    while at < end:
        match = _TOKEN.match(line, at)
        if match is None:
            raise TextError(f"cannot read `{line[at:].strip()}` in `{line.strip()}`")
        quoted = match["quoted"]
        found.append(Token(json.loads(quoted), True) if quoted else Token(match[0].strip()))
        at = match.end()
    return found


class Cursor:
    """Reads the tokens of one line from left to right."""

    def __init__(self, line: str) -> None:
        self._line = line.strip()
        self._tokens = tokens(line)
        self._at = 0

    def done(self) -> bool:
        return self._at == len(self._tokens)

    def peek(self, text: str) -> bool:
        """Whether the next token is this keyword or mark."""
        return not self.done() and self._tokens[self._at] == Token(text)

    def maybe(self, text: str) -> bool:
        """Takes the keyword or mark if it comes next."""
        taken = self.peek(text)
        self._at += taken
        return taken

    def expect(self, *texts: str) -> None:
        for text in texts:
            if not self.maybe(text):
                raise self.error(f"`{text}`")

    def word(self) -> str:
        if self.done():
            raise self.error("a word")
        self._at += 1
        return self._tokens[self._at - 1].text

    def number(self) -> int:
        text = self.word()
        try:
            return int(text)
        except ValueError:
            self._at -= 1
            raise self.error("a number") from None

    def sizes(self) -> tuple[int, ...]:
        text = self.word()
        try:
            return () if text == "scalar" else tuple(map(int, text.split("x")))
        except ValueError:
            self._at -= 1
            raise self.error("sizes such as `4x320`") from None

    def words(self, between: str = "", until: str = "#") -> tuple[str, ...]:
        """Words up to `until` or the end, with the mark `between` them."""
        found: list[str] = []
        while not self.done() and not self.peek(until):
            if found and between:
                self.expect(between)
            found.append(self.word())
        return tuple(found)

    def one_of(self, choices: Sequence[str]) -> str:
        text = self.word()
        if text not in choices:
            self._at -= 1
            raise self.error(" or ".join(f"`{choice}`" for choice in choices))
        return text

    def end(self) -> None:
        if not self.done():
            raise self.error("the end of the line")

    def error(self, wanted: str) -> TextError:
        rest = self._tokens[self._at].text if not self.done() else "the end"
        return TextError(f"expected {wanted} before `{rest}` in `{self._line}`")


def format_origin(origin: Origin | None) -> str:
    """`# sync.bucket, line 4 column 16, characters 57 to 72 of plan.sgplan`."""
    if origin is None:
        return ""
    text = f"# {word(origin.clause)}"
    if (span := origin.span) is not None:
        text += f", line {span.line} column {span.column}"
        text += f", characters {span.start} to {span.end} of {word(span.source)}"
    return text


def parse_origin(cursor: Cursor) -> Origin | None:
    """What stands behind `#`, up to the end of the line."""
    if not cursor.maybe("#"):
        cursor.end()
        return None
    clause, span = cursor.word(), None
    if cursor.maybe(","):
        cursor.expect("line")
        line = cursor.number()
        cursor.expect("column")
        column = cursor.number()
        cursor.expect(",", "characters")
        start = cursor.number()
        cursor.expect("to")
        end = cursor.number()
        cursor.expect("of")
        span = Span(cursor.word(), start, end, line, column)
    cursor.end()
    return Origin(clause, span)


def columns(rows: Sequence[Sequence[str]], gap: str = GAP) -> list[str]:
    """Rows of cells as aligned lines without trailing blanks."""
    widths: dict[int, int] = {}
    for row in rows:
        for place, cell in enumerate(row):
            widths[place] = max(widths.get(place, 0), len(cell))
    padded = (
        [cell.ljust(widths[place]) for place, cell in enumerate(row) if widths[place]]
        for row in rows
    )
    return [gap.join(cells).rstrip() for cells in padded]
