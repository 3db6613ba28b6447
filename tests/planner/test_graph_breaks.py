"""Reductions in several backward graphs: a graph break cuts the backward, not the bucket list."""

from __future__ import annotations

from dataclasses import replace

from sgplan.planner.facts import GraphFact
from sgplan.planner.pipeline import lower
from sgplan.planner.program import ReduceStart

from . import build

CUT = 5  # ops of the later region's backward, which runs first


def _part(graph: GraphFact, region: str, start: int, stop: int) -> GraphFact:
    """Ops `start..stop` of the backward as a graph of its own."""
    return replace(
        graph,
        region=region,
        digest=region[:1] * 64,
        ops=graph.ops[start:stop],
        gradients=tuple(
            replace(g, position=g.position - start)
            for g in graph.gradients
            if start <= g.position < stop
        ),
        heavy_after=tuple(p - start for p in graph.heavy_after if start <= p < stop),
    )


EARLY = replace(build.FORWARD, region="early", digest="1" * 64)
LATE = replace(build.FORWARD, region="late", digest="2" * 64)
LATE_BACKWARD = _part(build.BACKWARD, "late", 0, CUT)
EARLY_BACKWARD = _part(build.BACKWARD, "early", CUT, len(build.BACKWARD.ops))
PLAN = build.plan("sync { bucket = 1KiB  first_bucket = 64B }")


def _facts(*backwards: GraphFact):
    early, late = backwards
    return build.facts(build.root(graphs=(EARLY, early, LATE, late)))


def _starts(program) -> list[str]:
    return [line.after for line in program.phase("backward") if isinstance(line, ReduceStart)]


def test_buckets_start_in_the_graph_that_makes_their_last_gradient() -> None:
    program = lower(PLAN, _facts(EARLY_BACKWARD, LATE_BACKWARD))
    inside = {
        graph.name: graph.buckets for graph in program.graphs if graph.direction == "backward"
    }
    assert inside["bwd1"] + inside["bwd0"] == tuple(bucket.name for bucket in program.buckets)
    assert inside["bwd0"]
    assert inside["bwd1"]


def test_starts_are_the_same_ops_as_without_the_break() -> None:
    cut = lower(PLAN, _facts(EARLY_BACKWARD, LATE_BACKWARD))
    whole = lower(PLAN, build.facts())
    assert _starts(cut) == _starts(whole)


def test_a_gradient_made_by_two_graphs_is_left_to_hooks() -> None:
    both = replace(LATE_BACKWARD, gradients=build.BACKWARD.gradients[:-1])
    program = lower(PLAN, _facts(EARLY_BACKWARD, both))
    assert set(_starts(program)) == {""}
