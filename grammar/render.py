"""Diagnostics as text: gutter, carets, labels, notes and help.

The only module that lays out an error. It knows nothing of what may go wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from sgplan.grammar.diagnostics import Diagnostic, Label, Severity

_TAB = 4


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
    lines = [f"{head}{style.strong}: {diagnostic.message}{style.end}"]
    for source in dict.fromkeys(label.span.source for label in labels):
        here = [label for label in labels if label.span.source == source]
        lines += _excerpt(here, sources.get(source), page, diagnostic.primary)
    remarks = [f"note: {note}" for note in diagnostic.notes]
    remarks += [] if diagnostic.help is None else [f"help: {diagnostic.help}"]
    if remarks and labels:
        lines.append(page.bar)
    lines += [f"{page.pad} {page.paint('=')} {remark}" for remark in remarks]
    return "".join(f"{line.rstrip()}\n" for line in lines)


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
    where = f"{place.source}:{place.line}:{place.column}"
    if text is None:
        return [f"{page.pad}{page.paint('-->' if leads else ':::')} {where}"]
    lines = [f"{page.pad}{page.paint('-->' if leads else ':::')} {where}", page.bar]
    source_lines = text.split("\n")
    before = 0
    for number in sorted({label.span.line for label in labels}):
        if before and number > before + 1:
            lines.append(f"{page.pad} {page.paint(':')}")
        before = number
        shown = source_lines[number - 1].rstrip("\r") if number <= len(source_lines) else ""
        gutter = page.paint(f"{number:>{len(page.pad)}} |")
        lines.append(f"{gutter} {shown.expandtabs(_TAB)}")
        under = [_Mark.of(label, shown, primary) for label in labels if label.span.line == number]
        lines += [f"{page.bar} {row}" for row in _rows(under, page)]
    return lines


@dataclass(frozen=True, slots=True)
class _Mark:
    """One underline: where it starts and ends on the screen, its sign and its words."""

    start: int
    end: int
    sign: str
    text: str

    @staticmethod
    def of(label: Label, line: str, primary: Label | None) -> _Mark:
        first = label.span.column - 1
        last = min(first + label.span.end - label.span.start, max(len(line), first + 1))
        start = len(line[:first].expandtabs(_TAB))
        end = max(start + 1, len(line[:last].expandtabs(_TAB)))
        return _Mark(start, end, "^" if label is primary else "-", label.text)


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
