"""Diagnostics as data: what is wrong, where, the captured fact, and one cure.

This module knows the shape of an error and nothing of its text layout; `render.py` makes text, and
`to_wire` gives the machine form (`--json`) with the same fields. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters in one source text.

    Attributes:
        source: name of the text as the user knows it (`plan.sgplan`, `--set`).
        start: offset of the first character.
        end: offset behind the last character.
        line: line of `start`, from 1.
        column: column of `start` in characters, from 1.
    """

    source: str
    start: int
    end: int
    line: int
    column: int

    def to_wire(self) -> list[Any]:
        return [self.source, self.start, self.end, self.line, self.column]

    @staticmethod
    def from_wire(data: Sequence[Any] | None) -> Span | None:
        return None if data is None else Span(*data)


@dataclass(frozen=True, slots=True)
class Label:
    """A span with the words that stand under it (may be empty)."""

    span: Span
    text: str = ""

    def to_wire(self) -> list[Any]:
        return [self.span.to_wire(), self.text]

    @staticmethod
    def from_wire(data: Sequence[Any]) -> Label:
        return Label(Span(*data[0]), data[1])


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake, stated once.

    Attributes:
        code: `SG` and four digits; `codes.py` explains each.
        message: the fact: lower case, no final full stop, backticks around source text.
        primary: the smallest span that shows the fault; None when it has no place in a plan.
        secondary: other places that matter (the earlier declaration, the axis).
        notes: facts, one sentence each.
        help: the one thing to change, or None.
        severity: only `error` refuses the plan.
    """

    code: str
    message: str
    primary: Label | None = None
    secondary: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    severity: Severity = "error"

    def to_wire(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "primary": None if self.primary is None else self.primary.to_wire(),
            "secondary": [label.to_wire() for label in self.secondary],
            "notes": list(self.notes),
            "help": self.help,
        }

    @staticmethod
    def from_wire(data: dict[str, Any]) -> Diagnostic:
        primary = data["primary"]
        return Diagnostic(
            code=data["code"],
            message=data["message"],
            primary=None if primary is None else Label.from_wire(primary),
            secondary=tuple(Label.from_wire(label) for label in data["secondary"]),
            notes=tuple(data["notes"]),
            help=data["help"],
            severity=data["severity"],
        )


class Refused(Exception):
    """Carries every diagnostic of the stage that refused to go on; at least one is an error."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(f"{d.code}: {d.message}" for d in self.diagnostics))


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    return any(d.severity == "error" for d in diagnostics)
