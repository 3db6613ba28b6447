"""Every pass as text in, text out: `passes/*.txt` hold facts, plan, program before and after.

`--update-golden` rewrites the program after; read its diff.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sgplan.planner.facts import Facts
from sgplan.planner.pipeline import PASSES
from sgplan.planner.program_text import format_program, parse_program

from . import build

CASES = sorted((Path(__file__).parent / "passes").glob("*.txt"))
PASS = {each.name: each for each in PASSES}

FACTS: dict[str, Callable[[], Facts]] = {
    "in graph": lambda: build.facts(),
    "hooks": lambda: build.facts(build.root("eager", "hooks", graphs=())),
    "compiled on hooks": lambda: build.facts(build.root("inductor", "hooks")),
    "stock": lambda: build.facts(build.root("eager", "stock", graphs=())),
    "fused": lambda: build.fused(build.facts()),
    "two roots": lambda: build.facts(
        build.root("eager", "hooks", name="G", graphs=(), parameters=build.GPT_PARAMETERS[:2]),
        build.root("eager", "hooks", name="D", graphs=(), parameters=build.GPT_PARAMETERS[5:]),
    ),
}


@dataclass(frozen=True)
class Case:
    head: dict[str, str]
    plan: str
    before: str
    after: str


def read(path: Path) -> Case:
    parts = re.split(r"^--- (?:plan|before|after)\n", path.read_text(encoding="utf-8"), flags=re.M)
    head = dict(line.split(": ", 1) for line in parts[0].strip().splitlines())
    return Case(head, parts[1].strip(), parts[2], parts[3])


def written(case: Case, after: str) -> str:
    """The case's file with another program after."""
    head = "".join(f"{key}: {value}\n" for key, value in case.head.items())
    return f"{head}--- plan\n{case.plan}\n--- before\n{case.before}--- after\n{after}"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_pass(
    path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    monkeypatch.setattr("sgplan.planner.digest.__version__", "0.0")
    case = read(path)
    before = parse_program(case.before)
    made = PASS[case.head["pass"]].apply(before, build.plan(case.plan), FACTS[case.head["facts"]]())
    golden(path, written(case, format_program(made)))


def test_every_pass_has_a_case() -> None:
    assert {read(path).head["pass"] for path in CASES} == set(PASS)
