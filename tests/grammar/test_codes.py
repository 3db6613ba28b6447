"""Every code is explained, and its examples do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sgplan.grammar
from sgplan.grammar.check import check_text
from sgplan.grammar.code import Code
from sgplan.grammar.codes import CODES, FAMILIES

FOLDER = Path(next(iter(sgplan.grammar.__path__)))
FROM_TEXT = [code for code in CODES.values() if code.found == "check"]


def found(text: str, world: int | None) -> set[str]:
    return {diagnostic.code for diagnostic in check_text(text, "plan.sgplan", (), world)[1]}


@pytest.mark.parametrize("code", FROM_TEXT, ids=lambda code: code.code)
def test_bad_example_raises_the_code(code: Code) -> None:
    assert code.code in found(code.bad, code.world)


@pytest.mark.parametrize("code", FROM_TEXT, ids=lambda code: code.code)
def test_good_example_raises_nothing(code: Code) -> None:
    assert found(code.good, code.world) <= {"SG0230"} - {code.code}


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.code)
def test_code_is_explained(code: Code) -> None:
    assert re.fullmatch(r"SG\d{4}", code.code)
    assert code.code[:4] in FAMILIES
    assert not code.title.endswith(".")
    assert code.why.endswith(".")
    assert bool(code.bad) == bool(code.good) == (code.found == "check")


def test_codes_are_unique() -> None:
    from sgplan.grammar.codes_language import LANGUAGE_CODES
    from sgplan.grammar.codes_plan import PLAN_CODES
    from sgplan.grammar.codes_run import RUN_CODES

    assert len(CODES) == len(LANGUAGE_CODES) + len(PLAN_CODES) + len(RUN_CODES)


def test_every_code_of_the_grammar_is_in_the_index() -> None:
    used = {
        code
        for path in FOLDER.rglob("*.py")
        if not path.name.startswith("codes_")
        for code in re.findall(r'"(SG\d{4})"', path.read_text(encoding="utf-8"))
    }
    assert used <= CODES.keys()
    assert {code.code for code in FROM_TEXT} <= used
