"""Text to syntax tree, by the Lark grammar; what does not parse is named by `syntax_errors.py`.

This module knows how Lark's trees become nodes, and how to go on behind a fault: the item that
holds it is blanked and the rest parsed again, so that one run reports every broken item.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args
from lark import Token as LarkToken
from sgplan.grammar import ast
from sgplan.grammar.diagnostics import Diagnostic, Label, Refused, Span
from sgplan.grammar.scan import Places, Token, scan, through
from sgplan.grammar.syntax_errors import (
    diagnose,
    faulty_tokens,
    header_problem,
    header_tokens,
    segments,
)

LANGUAGE = 1
_MOST_ERRORS = 20


@v_args(meta=True)
class _Nodes(Transformer[LarkToken, Any]):
    """Lark's tree to ours, bottom up; the methods bear the names of rules and terminals."""

    def __init__(self, text: str, places: Places) -> None:
        super().__init__()
        self._text, self._places = text, places

    def _span(self, meta: Any) -> Span:
        return self._places.span(meta.start_pos, meta.end_pos)

    def NAME(self, token: Any) -> ast.Name:
        return ast.Name(str(token), self._span(token))

    LABEL = NAME

    def QTY(self, token: Any) -> ast.Quantity:
        return ast.Quantity(str(token), self._span(token))

    def STRING(self, token: Any) -> ast.Text:
        return ast.Text(re.sub(r"\\(.)", r"\1", token[1:-1]), self._span(token))

    def header(self, meta: Any, children: list[Any]) -> ast.Quantity:
        return children[1]

    def quantity(self, meta: Any, children: list[Any]) -> ast.Quantity:
        return children[0]

    def text(self, meta: Any, children: list[Any]) -> ast.Text:
        return children[0]

    def range(self, meta: Any, children: list[Any]) -> ast.Range:
        middle = next(i for i, child in enumerate(children) if isinstance(child, LarkToken))
        low, high = children[:middle], children[middle + 1 :]
        return ast.Range(next(iter(low), None), next(iter(high), None), self._span(meta))

    def scoped(self, meta: Any, children: list[Any]) -> ast.Scoped:
        return ast.Scoped(children[0], children[-1], self._span(meta))

    def items(self, meta: Any, children: list[Any]) -> ast.Items:
        return ast.Items(tuple(children), self._span(meta))

    def either(self, meta: Any, children: list[Any]) -> ast.Either:
        return ast.Either(tuple(children), self._span(meta))

    def chain(self, meta: Any, children: list[Any]) -> ast.Chain:
        return ast.Chain(tuple(children), self._span(meta))

    def ref(self, meta: Any, children: list[Any]) -> ast.Ref:
        return ast.Ref(children[0], tuple(children[1:]), self._span(meta))

    def member(self, meta: Any, children: list[Any]) -> ast.Member:
        separator = "." if str(children[0]) == "." else "::"
        return ast.Member(separator, children[1], self._span(meta))

    def index(self, meta: Any, children: list[Any]) -> ast.Index:
        key = None if isinstance(children[0], LarkToken) else children[0]
        return ast.Index(key, self._span(meta))

    def call(self, meta: Any, children: list[Any]) -> ast.Arguments:
        return ast.Arguments(tuple(children), self._span(meta))

    def argument(self, meta: Any, children: list[Any]) -> ast.Argument:
        name = children[0] if len(children) == 2 else None
        return ast.Argument(name, children[-1], self._span(meta))

    def attr(self, meta: Any, children: list[Any]) -> ast.Attribute:
        name, value = children
        return ast.Attribute(name, value, through(name.span, value.span))

    def let(self, meta: Any, children: list[Any]) -> ast.Let:
        return ast.Let(children[0], children[1], self._span(meta))

    def block(self, meta: Any, children: list[Any]) -> ast.Block:
        kind, *rest = children
        label = rest.pop(0) if rest and isinstance(rest[0], ast.Text) else None
        head = kind.span if label is None else through(kind.span, label.span)
        return ast.Block(kind, label, tuple(rest), self._span(meta), head)

    def override(self, meta: Any, children: list[Any]) -> ast.Override:
        label, *members = children
        span = self._span(meta)
        return ast.Override(label, tuple(members), span, through(span, label.span))


def parse(text: str, name: str) -> ast.Document:
    """The tree of one file.

    Raises:
        Refused: with every syntax error that was found.
    """
    places = Places(name, text)
    tokens = scan(text, places)
    problems = header_problem(tokens, places, LANGUAGE)
    if any(problem.code == "SG0102" for problem in problems):
        raise Refused(problems)
    readable, found = faulty_tokens(text, places)
    problems += sorted(found + _broken_items(readable, places), key=_position)
    if problems:
        raise Refused(problems)
    tree = _lark().parse(text, start="start")
    version, *items = _Nodes(text, places).transform(tree).children
    comments = tuple(
        ast.Comment(token.text.rstrip(), token.span) for token in tokens if token.kind == "comment"
    )
    return ast.Document(version, tuple(items), comments, name, text)


def parse_set(text: str, places: Places, start: int, end: int) -> ast.Assignment:
    """One `--set`, standing at `text[start:end]`.

    Raises:
        Refused: it is not `kind.label.attr=value`.
    """
    only = " " * start + text[start:end]
    readable, found = faulty_tokens(only, places)
    if found:
        raise Refused(found)
    try:
        tree = _lark().parse(readable, start="setting")
    except UnexpectedInput as error:
        raise Refused([_bad_set(text, places, start, end, error)]) from None
    *path, value = _Nodes(text, places).transform(tree).children
    return ast.Assignment(tuple(path), value, places.span(start, end))


def _bad_set(text: str, places: Places, start: int, end: int, error: UnexpectedInput) -> Diagnostic:
    offset = min(_offset(error, len(text)), end)
    at_end = offset >= end
    label = Label(
        places.span(start, end) if at_end else places.span(offset, end),
        "it ends too early" if at_end else "cannot be read from here on",
    )
    return Diagnostic(
        code="SG0121",
        message=f"`{text[start:end]}` is not an address and a value",
        primary=label,
        help="write `--set kind.attribute=value`, or `--set kind.label.attribute=value`; "
        "quote strings inside the value",
    )


def _broken_items(text: str, places: Places) -> list[Diagnostic]:
    """The first fault of every item that does not parse."""
    found: list[Diagnostic] = []
    header = header_tokens(scan(text, places))
    body: str | None = _blanked(text, 0, header[-1].span.end) if header else text
    while body is not None and len(found) < _MOST_ERRORS:
        try:
            _lark().parse(body, start="body")
        except UnexpectedInput as error:
            tokens = [token for token in scan(body, places) if token.kind != "comment"]
            problem = diagnose(tokens, _token_at(tokens, _offset(error, len(body))), places)
            found.append(problem)
            body = _without_item(body, tokens, problem)
        else:
            body = None
    return found


def _without_item(text: str, tokens: list[Token], problem: Diagnostic) -> str | None:
    """The text with the faulty item blanked, None when that leaves nothing to go on with."""
    assert problem.primary is not None
    at = problem.primary.span.start
    for start, end in segments(tokens):
        if start <= at < end:
            return _blanked(text, start, end)
    return None


def _blanked(text: str, start: int, end: int) -> str:
    """The text with a stretch of it replaced by spaces; lines stay lines."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def _offset(error: UnexpectedInput, end: int) -> int:
    if isinstance(error, UnexpectedToken):
        return end if error.token.type == "$END" else int(error.token.start_pos or 0)
    if isinstance(error, UnexpectedCharacters):
        return int(error.pos_in_stream or 0)
    return end


def _token_at(tokens: list[Token], offset: int) -> int:
    return next((i for i, token in enumerate(tokens) if token.span.end > offset), len(tokens))


def _position(problem: Diagnostic) -> int:
    return problem.primary.span.start if problem.primary else 0


@cache
def _lark() -> Lark:
    """The parser, its tables kept in the user's cache folder."""
    grammar = Path(__file__).with_name("sgplan.lark").read_text(encoding="utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer="contextual",
        start=["start", "body", "setting"],
        propagate_positions=True,
        maybe_placeholders=False,
        cache=_cache_file(),
    )


def _cache_file() -> str | bool:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home, "sgplan")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return str(folder / "grammar.lark")
