"""The literate pages hold: every plan on them is found right or wrong exactly as the page says."""

from __future__ import annotations

import pytest

from sgplan.grammar.check import check_text
from sgplan.grammar.format import format_document
from sgplan.grammar.parse import parse

from .pages import Example, examples

WRONG = examples("wrong_plans.md")
RIGHT = examples("language.md")
NOT_BUILT = "SG0230"


@pytest.mark.parametrize("example", WRONG + RIGHT, ids=lambda example: example.place)
def test_page_says_what_check_finds(example: Example) -> None:
    _, found = check_text(example.text, "plan.sgplan", (), example.world)
    named = {code for _, code in example.expected}
    lines = {
        (diagnostic.primary.span.line, diagnostic.code)
        for diagnostic in found
        if diagnostic.primary is not None and (diagnostic.code != NOT_BUILT or NOT_BUILT in named)
    }
    assert lines == example.expected


@pytest.mark.parametrize("example", WRONG, ids=lambda example: example.place)
def test_every_error_names_its_place_and_its_cure(example: Example) -> None:
    _, found = check_text(example.text, "plan.sgplan", (), example.world)
    assert found
    for diagnostic in found:
        assert diagnostic.primary is not None
        assert diagnostic.help is not None or diagnostic.severity == "note"


@pytest.mark.parametrize("example", RIGHT, ids=lambda example: example.place)
def test_right_plan_formats_to_an_equal_one(example: Example) -> None:
    document = parse(example.text, "plan.sgplan")
    formatted = format_document(document)
    assert parse(formatted, "plan.sgplan") == document
    assert format_document(parse(formatted, "plan.sgplan")) == formatted
