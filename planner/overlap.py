"""`overlap = required`: every bucket but the last must have work to hide behind.

Judged on the captured backward graph, for hooks too: they fire where the graph says the gradient
is final. On a run without a capture there is nothing to judge, and the caller looks at times.
"""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Plan, Sync
from sgplan.planner.facts import Facts, GraphFact, RootFact
from sgplan.planner.graphs import backward_chain, calls_of, whole_backward
from sgplan.planner.program import PLANNED_PATHS, Program
from sgplan.planner.starts import Start, starts


def overlap_violations(plan: Plan, facts: Facts, program: Program) -> list[Diagnostic]:
    """One SG0502 for each bucket that cannot overlap where the plan requires it."""
    calls = calls_of(facts)
    found: list[Diagnostic] = []
    for root in facts.roots:
        sync = plan.sync_of(root.name)
        backward = whole_backward(backward_chain(calls, root))
        if sync.overlap != "required" or root.path not in PLANNED_PATHS or backward is None:
            continue
        found += _of_root(sync, root, backward, program)
    return found


def _of_root(
    sync: Sync, root: RootFact, graph: GraphFact, program: Program
) -> Iterator[Diagnostic]:
    buckets = [bucket for bucket in program.buckets if bucket.root == root.name]
    for start in starts(graph, buckets)[:-1]:
        if start.heavy == 0:
            yield _diagnostic(sync, graph, start)


def _diagnostic(sync: Sync, graph: GraphFact, start: Start) -> Diagnostic:
    span = sync.origin("overlap") or sync.span
    return Diagnostic(
        "SG0502",
        f"bucket `{start.bucket.name}` cannot overlap: no matmul or convolution follows its start",
        None if span is None else Label(span, "overlap is required here"),
        notes=tuple(_facts(graph, start)),
        help="let it hold less with a smaller `bucket`, or write `overlap = prefer`",
    )


def _facts(graph: GraphFact, start: Start) -> Iterator[str]:
    behind = start.behind
    place = f"`{start.place or 'an input of the graph'}`, op {behind.ready + 1} of {len(graph.ops)}"
    if behind == start.own:
        yield f"its last gradient is that of `{start.own.parameter}`, ready behind {place}"
    else:
        yield (
            f"its own gradients are ready behind op {start.own.ready + 1}, but it starts behind an "
            f"earlier bucket, which waits for `{behind.parameter}`: {place}"
        )
    if graph.heavy_after:
        last = graph.heavy_after[-1]
        op = graph.ops[last]
        yield f"the last matmul or convolution is `{op.op}` of `{op.module}`, op {last + 1}"
    else:
        yield "the backward graph has no matmul or convolution"
