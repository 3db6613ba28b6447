"""What is said of `precision` blocks that no graph carries out."""

from __future__ import annotations

import pytest

from sgplan.planner.facts import Facts
from sgplan.planner.precision import idle

from .build import facts, plan, root

CASTS = 'precision "p" { compute = bf16 }'
SCALED = 'precision "p" { params = fp16  loss_scale = 1024 }'
STORED = 'precision "p" { params = bf16  master = fp32 }'


@pytest.mark.parametrize("found", [facts(root("eager")), facts(root("inductor", "stock"))])
@pytest.mark.parametrize(
    ("text", "clause"), [(CASTS, "compute = bf16"), (SCALED, "loss_scale = 1024")]
)
def test_casts_and_scale_without_a_graph_of_the_plan_are_refused(
    found: Facts, text: str, clause: str
) -> None:
    (problem,) = idle(plan(text), found)
    assert (problem.code, problem.severity) == ("SG0734", "error")
    assert problem.primary is not None
    span = problem.primary.span
    body = f"sgplan 1\n\n{text}\n"  # as `plan` writes it
    assert body[span.start : span.end] == clause
    assert found.roots[0].why in problem.notes[0]


@pytest.mark.parametrize("text", [CASTS, SCALED])
def test_graphs_of_the_plan_carry_them_out(text: str) -> None:
    assert idle(plan(text), facts(root("inductor"))) == []


def test_parameters_are_stored_without_any_graph() -> None:
    assert idle(plan(STORED), facts(root("eager"))) == []
