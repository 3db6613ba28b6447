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


def _not_text(data: bytes, name: str, at: int) -> Diagnostic:
    before = data[:at]
    line = before.count(b"\n") + 1
    column = at - (before.rfind(b"\n") + 1) + 1
    return Diagnostic(
        "SG0120",
        f"byte {at} (0x{data[at]:02x}) is not UTF-8 text",
        Label(Span(name, at, at + 1, line, column)),
        help="save the file as UTF-8",
    )
