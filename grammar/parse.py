"""Text to syntax tree, by the Lark grammar.

This module knows Lark and how its trees become nodes; what to say of a text that does not parse is
the business of `salvage.py`.
"""

# pyright: basic
# (Lark's types are partly unknown to a strict checker; nodes are typed from here on.)

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args
from lark import Token as LarkToken

from sgplan.grammar import ast
from sgplan.grammar.diagnostics import Diagnostic, Label, Refused, Span
from sgplan.grammar.scan import Places, Token, scan, through
from sgplan.grammar.stop import CLOSER

LANGUAGE = 1
DEEPEST = 32


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
    try:
        tree = _lark().parse(text, start="start")
    except UnexpectedInput:
        # Imported here: a text that parses, which is most of them, never pays for it.
        from sgplan.grammar.salvage import syntax_problems

        raise Refused(syntax_problems(text, places, LANGUAGE, _parse_body)) from None
    tokens = scan(text, places)
    _refuse_depth(tokens)
    version, *items = _Nodes(text, places).transform(tree).children
    if version.text != str(LANGUAGE):
        raise Refused([other_version(version.text, version.span, LANGUAGE)])
    comments = tuple(
        ast.Comment(token.text.rstrip(), token.span) for token in tokens if token.kind == "comment"
    )
    return ast.Document(version, tuple(items), comments, name, text)


def _refuse_depth(tokens: Iterable[Token]) -> None:
    """Everything behind the parser walks the tree by recursion, so its depth has a limit."""
    depth = 0
    for token in tokens:
        depth += (token.text in CLOSER) - (token.text in CLOSER.values())
        if depth > DEEPEST:
            raise Refused(
                [
                    Diagnostic(
                        "SG0122",
                        f"more than {DEEPEST} brackets are open here",
                        Label(token.span),
                        help="write it flat",
                    )
                ]
            )


def other_version(written: str, place: Span, language: int) -> Diagnostic:
    """The file is in a version of the language that is not known here."""
    return Diagnostic(
        "SG0102",
        f"version {written} of the language is not known here",
        Label(place, f"this sgplan reads version {language}"),
        help=f"write `sgplan {language}`, or install an sgplan that reads this version",
    )


def parse_set(text: str, places: Places, start: int, end: int) -> ast.Assignment:
    """One `--set`, standing at `text[start:end]`.

    Raises:
        Refused: it is not `kind.label.attr=value`.
    """
    only = " " * start + text[start:end]
    _refuse_depth(scan(only, places))
    try:
        tree = _lark().parse(only, start="setting")
    except UnexpectedInput as error:
        from sgplan.grammar.salvage import set_problems

        offset = _offset(error, len(only))
        raise Refused(set_problems(only, places, start, offset)) from None
    *path, value = _Nodes(text, places).transform(tree).children
    return ast.Assignment(tuple(path), value, places.span(start, end))


def _parse_body(text: str) -> int | None:
    """Where a text without its header stops to make sense; None when all of it does."""
    try:
        _lark().parse(text, start="body")
    except UnexpectedInput as error:
        return _offset(error, len(text))
    return None


def _offset(error: UnexpectedInput, end: int) -> int:
    if isinstance(error, UnexpectedToken):
        return end if error.token.type == "$END" else int(error.token.start_pos or 0)
    return int(error.pos_in_stream or 0) if isinstance(error, UnexpectedCharacters) else end


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
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # as the standard wants it
        home = os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home, "sgplan")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return str(folder / "grammar.lark")
