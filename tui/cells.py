"""Rows of a table as data, and how text is fitted into a width.

Texts come from scripts and from damaged files: what would move the cursor or colour the screen is
taken out here, because everything that is shown comes through `clipped`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, TypeVar, overload

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)", re.DOTALL)
"""Sequences that a terminal takes for itself (ECMA-48), titles and links among them."""

Tone = Literal["", "good", "warn", "bad", "dim"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of one cell; `tone` colours what the text says anyway."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: of the head.
        width: cells at least.
        most: cells at most, where there is room; the last column gets all that is left.
        right: whether numbers are lined up at the right.
        rank: columns of a higher rank go first where the screen is too narrow.
    """

    title: str
    width: int
    right: bool = False
    rank: int = 0
    most: int = 0


Row = Sequence[Cell]
Item = TypeVar("Item")


class Rows(Sequence[Row], Generic[Item]):
    """Rows that are made when they are looked at: of hundreds, a screen shows a few."""

    def __init__(self, items: Sequence[Item], make: Callable[[Item], Row]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Rows[Item]: ...
    def __getitem__(self, place: int | slice) -> Row | Rows[Item]:
        if isinstance(place, slice):
            return Rows(self._items[place], self._make)
        return self._make(self._items[place])


def fitted(columns: Sequence[Column], width: int) -> list[int]:
    """Places of the columns that fit into a width, in their order; at least one."""
    kept = list(range(len(columns)))
    while len(kept) > 1 and sum(columns[n].width + 1 for n in kept) - 1 > width:
        kept.remove(max(kept, key=lambda n: (columns[n].rank, n)))
    return kept


def widths(columns: Sequence[Column], width: int) -> list[int]:
    """Cells of each of these columns in a width: what is left goes to them from left to right."""
    found = [column.width for column in columns]
    left = max(width - sum(found) - len(found) + 1, 0)
    for place, column in enumerate(columns):
        more = min(max(column.most - column.width, 0), left)
        found[place] += more
        left -= more
    found[-1] = max(width - sum(found[:-1]) - len(found) + 1, 0)
    return found


def clipped(text: str, width: int, *, right: bool = False) -> str:
    """Text in exactly so many cells of one line; what is cut off is marked."""
    if not text.isprintable():
        text = _printable(text)
    cells = len(text) if text.isascii() else sum(map(_cells, text))
    if cells > width:
        return _cut(text, width - 1) + "…" if width > 0 else ""
    blank = " " * (width - cells)
    return blank + text if right else text + blank


@lru_cache(maxsize=4096)
def _cells(char: str) -> int:
    """Two for what East Asian fonts draw wide (UAX 11), none for what stands on another sign."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    left = width
    for place, char in enumerate(text):
        left -= _cells(char)
        if left < 0:  # half of a wide one is a blank
            return text[:place] + " " * (left + _cells(char))
    return text


def _printable(text: str) -> str:
    """Without what a terminal obeys; `\ufffd` stands for what has no sign."""
    plain = _ESCAPES.sub("", text)
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in plain)
