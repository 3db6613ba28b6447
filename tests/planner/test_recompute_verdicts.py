"""What is said of `recompute` blocks: verdicts and lines of the listing, from facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sgplan.planner.facts import Facts, RecomputeFact
from sgplan.planner.listing import render_plan
from sgplan.planner.pipeline import lower
from sgplan.planner.recompute import broken, idle, recompute_lines, requests_of

from .build import BACKWARD, FORWARD, facts, plan, root

MIB = 1024 * 1024
HALF = plan("recompute { memory = 50% }")
DONE = RecomputeFact("recompute", 4 * MIB, 2 * MIB, 31, limit=2 * MIB)


def found(*recomputed: RecomputeFact) -> Facts:
    graph = replace(FORWARD, saved_without=5 * MIB, recomputed=recomputed)
    return facts(root(graphs=(graph, BACKWARD)))


def test_requests_come_by_priority_then_as_written() -> None:
    wanted = plan("""recompute "a" { memory = 50% }
recompute "b" { in = "blocks.*"  every = 2modules  priority = 3 }
recompute "c" { match = norm }""")
    assert [each.address for each in requests_of(wanted, "model")] == [
        "recompute.b",
        "recompute.a",
        "recompute.c",
    ]


def test_a_block_that_is_followed_is_listed_and_nothing_is_said() -> None:
    told = found(DONE)
    assert broken(HALF, told) == []
    assert idle(HALF, told) == []
    (_, line) = recompute_lines(HALF, told)
    assert "memory = 50%   fwd0   4.0 MiB -> 2.0 MiB saved   31 ops computed again" in line
    shown = render_plan(HALF, [(lower(HALF, told), told)])
    assert "3.0 MiB saved, 5.0 MiB without recompute" in shown


def test_a_share_that_is_not_reached_is_refused_with_the_least() -> None:
    (problem,) = broken(HALF, found(replace(DONE, after=3 * MIB)))
    assert (problem.code, problem.severity) == ("SG0730", "error")
    assert "3.0 MiB (75 %) are the least" in problem.notes[0]
    assert problem.help == "write `memory = 76%`, or select more with `in`"
    assert idle(HALF, found(replace(DONE, after=3 * MIB, ops=0))) == []
    # All of it, or nearly all, is no share that a plan may name.
    (problem,) = broken(HALF, found(replace(DONE, after=DONE.before)))
    assert problem.help == "leave `memory` out, or select more with `in`"


def test_a_cut_that_repeats_something_else_is_refused() -> None:
    (problem,) = broken(HALF, found(replace(DONE, objection="`aten.rand` would draw twice")))
    assert problem.code == "SG0732"
    assert problem.notes == ("`aten.rand` would draw twice",)


def test_rivals_are_named() -> None:
    rival = replace(DONE, objection="`aten.mm` of `tok`", rival="recompute.other")
    (problem,) = broken(HALF, found(rival))
    assert problem.code == "SG0601"
    assert "`recompute.other` and `recompute`" in problem.message


@pytest.mark.parametrize(
    ("body", "severity"), [('in = "tok"  memory = 50%', "error"), ("match = loss", "note")]
)
def test_a_block_that_changes_nothing_is_said(body: str, severity: str) -> None:
    wanted = plan(f"recompute {{ {body} }}")
    (problem,) = idle(wanted, found(RecomputeFact("recompute", 0, 0, 0)))
    assert (problem.code, problem.severity) == ("SG0731", severity)


def test_a_block_without_a_graph_is_said() -> None:
    (problem,) = idle(HALF, facts(root("eager", graphs=())))
    assert problem.notes == ("no graph with a backward was captured for it",)
