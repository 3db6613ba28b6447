"""Bytes of a file to the text of a plan. Knows encodings, nothing of the language."""

from __future__ import annotations

from sgplan.grammar.diagnostics import Diagnostic, Label, Refused, Span

_MARK = b"\xef\xbb\xbf"


def decode(data: bytes, name: str) -> str:
    """The text, without a byte order mark.

    Raises:
        Refused: the bytes are not UTF-8.
    """
    data = data.removeprefix(_MARK)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused([_not_text(data, name, error.start)]) from None


def legible(data: bytes) -> str:
    """The text as far as it is one, for showing where it is not; as many lines, same columns."""
    return data.removeprefix(_MARK).decode("utf-8", "replace")


def _not_text(data: bytes, name: str, at: int) -> Diagnostic:
    before = data[:at].decode("utf-8")
    line = before.count("\n") + 1
    column = len(before) - before.rfind("\n")
    return Diagnostic(
        "SG0120",
        f"byte {at} (0x{data[at]:02x}) is not UTF-8 text",
        Label(Span(name, len(before), len(before) + 1, line, column)),
        help="save the file as UTF-8",
    )
