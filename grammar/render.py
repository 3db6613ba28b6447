"""Diagnostics as text: gutter, carets, labels, notes and help.

The only module that lays out an error. It knows nothing of what may go wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from sgplan.grammar.diagnostics import Diagnostic, Label, Severity

_TAB = 4
_WIDEST = 160  # of a source line; a longer one is shown around what is marked
_BEFORE = 60


@dataclass(frozen=True, slots=True)
class Style:
    """What stands before and after each kind of text."""

    error: str = ""
    warning: str = ""
    note: str = ""
    gutter: str = ""
    strong: str = ""
    end: str = ""

    def of(self, severity: Severity) -> str:
        return {"error": self.error, "warning": self.warning, "note": self.note}[severity]


PLAIN = Style()
COLOUR = Style(
    error="\x1b[1;31m",
    warning="\x1b[1;33m",
    note="\x1b[1;36m",
    gutter="\x1b[34m",
    strong="\x1b[1m",
    end="\x1b[0m",
)


def render_all(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], style: Style = PLAIN
) -> str:
    """Every diagnostic, a blank line between two."""
    return "\n".join(render(diagnostic, sources, style) for diagnostic in diagnostics)


def render(diagnostic: Diagnostic, sources: Mapping[str, str], style: Style = PLAIN) -> str:
    """One diagnostic; a span of an unknown source is named and not shown."""
    labels = [] if diagnostic.primary is None else [diagnostic.primary]
    labels += diagnostic.secondary
    width = max((len(str(label.span.line)) for label in labels), default=1)
    page = _Page(style, style.of(diagnostic.severity), " " * width)
    head = f"{page.colour}{diagnostic.severity}[{diagnostic.code}]{style.end}"
    lines = [f"{head}{style.strong}: {visible(diagnostic.message)}{style.end}"]
    for source in dict.fromkeys(label.span.source for label in labels):
        here = [label for label in labels if label.span.source == source]
        lines += _excerpt(here, sources.get(source), page, diagnostic.primary)
    remarks = [f"note: {note}" for note in diagnostic.notes]
    remarks += [] if diagnostic.help is None else [f"help: {diagnostic.help}"]
    if remarks and labels:
        lines.append(page.bar)
    lines += [f"{page.pad} {page.paint('=')} {visible(remark)}" for remark in remarks]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def visible(text: str) -> str:
    """The text without characters that a terminal would obey or hide."""
    return text if text.isprintable() else "".join(map(_sign, text))


def _sign(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    # The control pictures of Unicode: `␛` for an escape.
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def _on_screen(text: str) -> str:
    return visible(text.expandtabs(_TAB))


def _width(text: str) -> int:
    """Columns of the terminal: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1
        for character in text
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """What every line of one diagnostic shares: colours and the width of the gutter."""

    style: Style
    colour: str
    pad: str

    def paint(self, text: str) -> str:
        return f"{self.style.gutter}{text}{self.style.end}"

    @property
    def bar(self) -> str:
        return f"{self.pad} {self.paint('|')}"


def _excerpt(
    labels: list[Label], text: str | None, page: _Page, primary: Label | None
) -> list[str]:
    """One source: where, and its lines with what stands under them."""
    leads = primary is not None and primary in labels
    place = primary.span if leads and primary is not None else labels[0].span
    where = visible(f"{place.source}:{place.line}:{place.column}")
    if text is None:
        return [f"{page.pad}{page.paint('-->' if leads else ':::')} {where}"]
    lines = [f"{page.pad}{page.paint('-->' if leads else ':::')} {where}", page.bar]
    source_lines = _lines_of(text)
    before = 0
    for number in sorted({label.span.line for label in labels}):
        if before and number > before + 1:
            lines.append(f"{page.pad} {page.paint(':')}")
        before = number
        whole = source_lines[number - 1].rstrip("\r") if number <= len(source_lines) else ""
        gutter = page.paint(f"{number:>{len(page.pad)}} |")
        marked = [label for label in labels if label.span.line == number]
        shown, hidden = _window(whole, min(label.span.column - 1 for label in marked))
        lines.append(f"{gutter} {_on_screen(shown)}")
        under = [_Mark.of(label, shown, hidden, primary) for label in marked]
        lines += [f"{page.bar} {row}" for row in _rows(under, page)]
    return lines


@lru_cache(maxsize=4)
def _lines_of(text: str) -> list[str]:
    """Kept, because many diagnostics point into one text."""
    return text.split("\n")


def _window(line: str, first: int) -> tuple[str, int]:
    """What is shown of a line, and by how much its columns move to the left."""
    start = max(0, first - _BEFORE)
    if len(line) <= _WIDEST:
        return line, 0
    end = start + _WIDEST
    before, after = "…" if start else "", "…" if end < len(line) else ""
    return before + line[start:end] + after, start - len(before)


@dataclass(frozen=True, slots=True)
class _Mark:
    """One underline: where it starts and ends on the screen, its sign and its words."""

    start: int
    end: int
    sign: str
    text: str

    @staticmethod
    def of(label: Label, line: str, hidden: int, primary: Label | None) -> _Mark:
        first = min(label.span.column - 1 - hidden, len(line))
        last = min(first + label.span.end - label.span.start, max(len(line), first + 1))
        start = _width(_on_screen(line[:first]))
        end = max(start + 1, _width(_on_screen(line[:last])))
        return _Mark(start, end, "^" if label is primary else "-", visible(label.text))


def _rows(marks: list[_Mark], page: _Page) -> list[str]:
    """The underlines with the last words beside them, then the other words, one a row."""
    marks = sorted(marks, key=lambda mark: (mark.start, mark.sign == "-"))
    signs = ""
    for mark in sorted(marks, key=lambda mark: mark.sign == "^"):
        signs = signs.ljust(mark.end)
        signs = signs[: mark.start] + mark.sign * (mark.end - mark.start) + signs[mark.end :]
    beside = marks[-1]
    rows = [f"{_painted(signs, page)} {beside.text}"]
    hanging = [mark for mark in marks[:-1] if mark.text]
    if beside.end < len(signs) and beside.text:
        # Something longer started earlier: words beside it would seem to belong to both.
        rows, hanging = [_painted(signs, page)], [mark for mark in marks if mark.text]
    if hanging:
        rows.append(_stems(hanging))
    while hanging:
        mark = hanging.pop()
        rows.append(_stems(hanging).ljust(mark.start)[: mark.start] + mark.text)
    return rows


def _stems(marks: list[_Mark]) -> str:
    row = ""
    for mark in marks:
        row = row.ljust(mark.start)[: mark.start] + "|"
    return row


def _painted(signs: str, page: _Page) -> str:
    parts = (
        (page.colour if sign == "^" else page.style.gutter) + "".join(run) + page.style.end
        if sign != " "
        else "".join(run)
        for sign, run in groupby(signs)
    )
    return "".join(parts)
