"""`overlap = required`: which bucket cannot hide, and which facts say so."""

from __future__ import annotations

from dataclasses import replace

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.planner.facts import GraphFact
from sgplan.planner.overlap import overlap_violations
from sgplan.planner.pipeline import lower
from sgplan.planner.starts import starts

from .build import BACKWARD, FORWARD, facts, plan, root

REQUIRED = plan("sync { bucket = 1KiB  first_bucket = 1KiB  overlap = required }")


def judged(graph: GraphFact) -> list[Diagnostic]:
    found = facts(root(graphs=(FORWARD, graph)))
    return overlap_violations(REQUIRED, found, lower(REQUIRED, found))


def test_the_last_bucket_is_exempt_and_the_one_before_is_not() -> None:
    found = judged(BACKWARD)
    assert [d.message for d in found] == [
        "bucket `b1` cannot overlap: no matmul or convolution follows its start"
    ]
    assert found[0].code == "SG0502"
    assert found[0].primary is not None
    assert found[0].primary.span.line == 3
    assert found[0].notes == (
        "its last gradient is that of `blocks.0.fc.bias`, ready behind "
        "`aten.sum.dim_IntList of blocks.0.fc`, op 8 of 9",
        "the last matmul or convolution is `aten.mm.default` of `blocks.0.fc`, op 7",
    )


def test_a_later_matmul_is_enough() -> None:
    assert judged(replace(BACKWARD, heavy_after=(0, 8))) == []


def test_a_bucket_that_waits_for_an_earlier_one_says_so() -> None:
    late = tuple(
        replace(g, position=8) if g.parameter == "ln.bias" else g for g in BACKWARD.gradients
    )
    found = judged(replace(BACKWARD, gradients=late))
    assert len(found) == 2
    assert (
        found[1]
        .notes[0]
        .startswith(
            "its own gradients are ready behind op 8, but it starts behind an earlier bucket"
        )
    )


def test_a_graph_without_matmul_says_so() -> None:
    found = judged(replace(BACKWARD, heavy_after=()))
    assert found[0].notes[-1] == "the backward graph has no matmul or convolution"


def test_hooks_are_judged_on_the_captured_graph() -> None:
    found = facts(root("eager", "hooks"))
    assert len(overlap_violations(REQUIRED, found, lower(REQUIRED, found))) == 1


def test_preferred_overlap_is_not_judged() -> None:
    wanted = plan("sync { bucket = 1KiB  first_bucket = 1KiB }")
    assert overlap_violations(wanted, facts(), lower(wanted, facts())) == []


def test_a_root_without_a_capture_is_not_judged() -> None:
    bare = facts(root("eager", "hooks", graphs=()))
    assert overlap_violations(REQUIRED, bare, lower(REQUIRED, bare)) == []


def test_starts_keep_list_order_where_gradients_appear_in_another() -> None:
    buckets = lower(REQUIRED, facts()).buckets
    early = tuple(
        replace(g, position=0) if g.parameter.startswith("blocks.0") else g
        for g in BACKWARD.gradients
    )
    found = starts(replace(BACKWARD, gradients=early), buckets)
    assert [start.behind.ready for start in found] == [4, 4, 8]


def test_a_group_is_ready_behind_its_last_gradient() -> None:
    grouped = tuple(replace(g, handed_over=8) for g in BACKWARD.gradients)
    found = starts(replace(BACKWARD, gradients=grouped), lower(REQUIRED, facts()).buckets)
    assert {start.place for start in found} == {"aten.embedding_dense_backward of tok"}
