"""The planner's own order: imports, passes, documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sgplan.planner.legal import PLACES, RULES
from sgplan.planner.passes.base import Pass
from sgplan.planner.pipeline import PASSES

PLANNER = Path(__file__).parents[2] / "planner"
CONTRACTS = (
    "sgplan.grammar.ast",
    "sgplan.grammar.diagnostics",
    "sgplan.grammar.plan",
    "sgplan.planner.facts",
    "sgplan.planner.program",
    "sgplan.interpreter.events",
)
PURE = tuple(
    f"sgplan.planner.{path.stem}"
    for path in sorted(PLANNER.glob("*.py"))
    if path.stem not in ("__init__", "torch_api")
)


def loaded_by(module: str) -> set[str]:
    """The top-level packages that importing a module alone brings in."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", CONTRACTS)
def test_a_contract_loads_neither_torch_nor_lark_nor_textual(module: str) -> None:
    assert not loaded_by(module) & {"torch", "lark", "textual", "msgpack"}


def test_a_rank_lowers_without_lark_and_without_torch() -> None:
    assert not loaded_by(", ".join(PURE)) & {"torch", "lark", "textual", "rich"}


@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.name)
def test_a_pass_lives_in_the_file_of_its_name(each: Pass) -> None:
    assert type(each).__module__ == f"sgplan.planner.passes.{each.name}"
    assert "->" in (sys.modules[type(each).__module__].__doc__ or ""), "shape before and after"


def test_every_pass_file_is_in_the_pipeline() -> None:
    files = {path.stem for path in (PLANNER / "passes").glob("*.py")} - {"__init__", "base"}
    assert files == {each.name for each in PASSES}


def test_every_promise_is_needed_or_checked() -> None:
    wanted = {need for each in PASSES for need in each.needs}
    wanted |= {rule.since for rule in RULES} | {place.since for place in PLACES.values()}
    assert {promise for each in PASSES for promise in each.promises} <= wanted


def test_the_readme_lists_the_passes_in_order_and_every_file() -> None:
    text = (PLANNER / "README.md").read_text(encoding="utf-8")
    places = [text.index(f"`{each.name}`") for each in PASSES]
    assert places == sorted(places)
    for path in (*PLANNER.glob("*.py"), *(PLANNER / "capture").glob("*.py")):
        shown = path.relative_to(PLANNER).as_posix()
        assert path.stem == "__init__" or f"`{shown}`" in text, shown
