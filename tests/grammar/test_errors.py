"""Rendered errors, as the user reads them: `errors/NAME.sgplan` and `errors/NAME.txt`.

A first line `# --world N` or `# --set ADDRESS=VALUE` gives the arguments of `check`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sgplan.grammar.check import check_text, sources_of
from sgplan.grammar.codes import CODES
from sgplan.grammar.diagnostics import Diagnostic
from sgplan.grammar.render import render_all

FOLDER = Path(__file__).parent / "errors"
PLANS = sorted(FOLDER.glob("*.sgplan"))
NAME = "plan.sgplan"


def checked(path: Path) -> tuple[list[Diagnostic], dict[str, str]]:
    """The diagnostics of one plan, and the texts they point into."""
    text = path.read_text(encoding="utf-8")
    words = text.split("\n", 1)[0].split()
    sets = words[2:] if words[:2] == ["#", "--set"] else []
    world = int(words[2]) if words[:2] == ["#", "--world"] else None
    _, found = check_text(text, NAME, sets, world)
    return found, sources_of(text, NAME, sets)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_error_reads_as_recorded(path: Path, golden: Callable[[Path, str], None]) -> None:
    found, sources = checked(path)
    golden(path.with_suffix(".txt"), render_all(found, sources))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_error_keeps_the_style(path: Path) -> None:
    found, sources = checked(path)
    assert found
    for diagnostic in found:
        assert diagnostic.code in CODES
        assert not diagnostic.message.endswith(".")
        assert diagnostic.message[0].islower() or not diagnostic.message[0].isalpha()
        assert "illegal" not in diagnostic.message
        assert diagnostic.primary is not None
        assert diagnostic.help or diagnostic.severity == "note"
        for label in (diagnostic.primary, *diagnostic.secondary):
            assert label.span.end <= len(sources[label.span.source]) + 1


def test_every_snapshot_is_used() -> None:
    recorded = {path.stem for path in FOLDER.glob("*.txt")}
    assert recorded == {path.stem for path in PLANS}
    assert {path.suffix for path in FOLDER.iterdir()} == {".sgplan", ".txt"}


def test_there_are_enough_snapshots() -> None:
    assert len(PLANS) >= 60
