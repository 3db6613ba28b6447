"""Texts drawn from the grammar itself: what is printed parses back to an equal tree.

Deterministic: the same texts every time.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark
from lark import Lark

import sgplan.grammar.parse
from sgplan.grammar.ast import Document
from sgplan.grammar.check import check
from sgplan.grammar.diagnostics import Diagnostic, Refused
from sgplan.grammar.format import format_document
from sgplan.grammar.parse import parse
from sgplan.grammar.scan import Places, scan

from .pages import examples

NAME = "fuzz.sgplan"
GRAMMAR = Path(sgplan.grammar.parse.__file__).with_name("sgplan.lark").read_text(encoding="utf-8")

_NAMES = ["sync", "fuse", "mesh", "bucket", "a", "_b1", "in", "input", "aten", "sgplan"]
_QUANTITIES = ["0", "25MiB", "1f1b", "1e-6", "100/s", "5%", "-3", "2.5", "1.5e+3s", "2modules"]
_STRINGS = ['""', '"layers.*"', '"a b"', '"say \\"x\\""', '"\\\\"', '"# no comment"', '"{0..11}"']

# Every terminal that ends in a letter or digit brings its own space: the grammar's rules say which
# tokens follow each other, not what must stand between two words.
_TERMINALS = {
    "NAME": st.sampled_from(_NAMES).map(lambda name: f"{name} "),
    "QTY": st.sampled_from(_QUANTITIES).map(lambda quantity: f"{quantity} "),
    "STRING": st.sampled_from(_STRINGS),
    "COMMENT": st.sampled_from(["# note\n", "#\n", '  # a "b" { \n', "\n\n# own line\n"]),
}
_KEYWORDS = {"LET": "let ", "OVERRIDE": "override "}

FAST = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


LARK = Lark(GRAMMAR, start=["start", "body"], parser="lalr", lexer="contextual")


def plans() -> st.SearchStrategy[str]:
    """Whole plans by the rules of the grammar, version 1 of it."""
    explicit = _TERMINALS | {name: st.just(text) for name, text in _KEYWORDS.items()}
    return from_lark(LARK, start="body", explicit=explicit).map("sgplan 1\n".__add__)


PLANS = plans()


def printed_plan_parses_to_an_equal_tree(document: Document) -> None:
    assert parse(format_document(document), NAME) == document


def formatting_twice_changes_nothing(document: Document) -> None:
    once = format_document(document)
    again = parse(once, NAME)
    assert format_document(again) == once
    assert [c.text for c in again.comments] == [c.text for c in document.comments]


def formatted_plan_has_no_loose_ends(document: Document) -> None:
    lines = format_document(document).split("\n")
    assert lines[-1] == ""
    assert all(line == line.rstrip() for line in lines)
    assert not any(a == b == "" for a, b in pairwise(lines[:-1]))


def check_answers_every_plan(document: Document) -> None:
    plan, found = check(document)
    assert (plan is None) == any(diagnostic.severity == "error" for diagnostic in found)


def scanner_cuts_as_the_parser_does(document: Document) -> None:
    interactive = LARK.parse_interactive(document.text, start="start")
    theirs = [(str(token), token.start_pos) for token in interactive.iter_parse()]
    ours = [
        (token.text, token.span.start)
        for token in scan(document.text, Places(NAME, document.text))
        if token.kind != "comment"
    ]
    assert ours == theirs


PROPERTIES = (
    printed_plan_parses_to_an_equal_tree,
    formatting_twice_changes_nothing,
    formatted_plan_has_no_loose_ends,
    check_answers_every_plan,
    scanner_cuts_as_the_parser_does,
)


# Drawing a plan costs far more than any property of it, so they share each one.
@settings(FAST, max_examples=80)
@given(PLANS)
def test_every_plan_of_the_grammar_has_every_property(text: str) -> None:
    document = parse(text, NAME)
    for holds in PROPERTIES:
        holds(document)


def syntax_errors(text: str) -> tuple[Diagnostic, ...] | None:
    """Why the text does not parse, None when it does."""
    try:
        parse(text, NAME)
    except Refused as refused:
        return refused.diagnostics
    return None


def refused_with_places(text: str) -> None:
    """The text parses, or every reason why it does not has a place inside it."""
    found = syntax_errors(text)
    assert found != ()
    for diagnostic in found or ():
        assert diagnostic.primary is not None
        assert diagnostic.help is not None
        assert 0 <= diagnostic.primary.span.start <= diagnostic.primary.span.end <= len(text)


@FAST
@given(st.text(alphabet="sync{}[]()=\"'.,|->:#%\n 1M*\\let", max_size=60))
def test_any_text_is_read_or_refused_with_places(text: str) -> None:
    refused_with_places(text)
    refused_with_places(f"sgplan 1\n{text}")


@FAST
@given(
    st.sampled_from([example.text for example in examples("language.md")]),
    st.integers(0, 800),
    st.sampled_from(['"', "}", "{", "=", "]", "'", "", "(", "..", " "]),
)
def test_damaged_plan_is_read_or_refused_with_places(text: str, at: int, put: str) -> None:
    at %= len(text) + 1
    refused_with_places(text[:at] + put + text[at + 1 :])
