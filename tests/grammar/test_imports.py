"""What must stay light: contract modules need no parser and no torch, `check` needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "lark", "textual", "rich", "msgpack", "numpy")


def loaded(statement: str) -> set[str]:
    """The heavy packages that a fresh process has after the statement."""
    script = f"import sys\n{statement}\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split("\n")[-2].split())


@pytest.mark.parametrize(
    "module", ["ast", "diagnostics", "plan", "planfile", "clauses", "literals", "written"]
)
def test_contract_module_loads_the_standard_library_only(module: str) -> None:
    assert loaded(f"import sgplan.grammar.{module}") == set()


def test_resolving_a_plan_from_the_wire_needs_no_parser() -> None:
    statement = (
        "from sgplan.grammar.plan import PlanFile\n"
        "PlanFile.from_wire(PlanFile('p', '').to_wire()).resolve(2, 'cpu')"
    )
    assert loaded(statement) == set()


def test_check_loads_the_parser_and_nothing_else_that_is_heavy() -> None:
    statement = (
        "from sgplan.grammar.check import check_text\ncheck_text('sgplan 1\\nsync { }', 'p')"
    )
    assert loaded(statement) == {"lark"}


def test_check_of_a_right_plan_loads_no_error_recovery() -> None:
    script = (
        "import sys\nfrom sgplan.grammar.check import check_text\n"
        "check_text('sgplan 1\\nsync { }', 'p')\n"
        "assert 'sgplan.grammar.salvage' not in sys.modules\n"
        "assert 'sgplan.grammar.codes' not in sys.modules\n"
        "assert 'sgplan.grammar.clauses' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
