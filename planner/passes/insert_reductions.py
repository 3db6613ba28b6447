"""Reduces every bucket over axis `data` and delivers the gradients.

    run bwd0 (…) -> grads        run bwd0 (…) -> grads
                            ->     reduce.start b0 axis=data   after aten.mm of blocks.4
                                   wait b0
                                 deliver model grads (62)

Inside the graphs when each gradient of the root is made by exactly one of them, else by hook. With
`overlap = off` all starts stand behind the whole backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts, RootFact
from sgplan.planner.graphs import Call, backward_chain, calls_of, whole_backward
from sgplan.planner.origins import asked
from sgplan.planner.passes.base import with_phase
from sgplan.planner.program import (
    PLANNED_PATHS,
    Bucket,
    Deliver,
    Instruction,
    Origin,
    Program,
    ReduceStart,
    Run,
    Wait,
)
from sgplan.planner.starts import starts

AXIS = "data"


@dataclass(frozen=True, slots=True)
class InsertReductions:
    name: ClassVar[str] = "insert_reductions"
    needs: ClassVar[frozenset[str]] = frozenset({"buckets", "runs"})
    promises: ClassVar[frozenset[str]] = frozenset({"reductions"})

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        calls = calls_of(facts)
        lines = list(program.phase("backward"))
        for root in facts.roots:
            if root.path in PLANNED_PATHS and root.parameters:
                at = _behind_runs(lines, program, root)
                lines[at:at] = _reduce(program, plan, root, calls)
        return with_phase(program, "backward", lines)


def _behind_runs(lines: Sequence[Instruction], program: Program, root: RootFact) -> int:
    """The line behind the root's last `run` of the backward phase; roots follow one another."""
    own = {graph.name for graph in program.graphs if graph.root == root.name}
    places = [i for i, line in enumerate(lines) if isinstance(line, Run) and line.graph in own]
    return places[-1] + 1 if places else len(lines)


def _reduce(
    program: Program, plan: Plan, root: RootFact, calls: tuple[Call, ...]
) -> list[Instruction]:
    sync = plan.sync_of(root.name)
    buckets = tuple(bucket for bucket in program.buckets if bucket.root == root.name)
    overlap = asked(sync, "overlap")
    made = _at_end if sync.overlap == "off" else _when_ready
    return [
        *made(root, calls, buckets, overlap),
        Wait(tuple(bucket.name for bucket in buckets), overlap),
        Deliver(root.name, len(root.parameters), asked(sync, "by")),
    ]


def _at_end(
    root: RootFact, calls: tuple[Call, ...], buckets: tuple[Bucket, ...], origin: Origin
) -> list[Instruction]:
    return [ReduceStart(bucket.name, AXIS, when="end", origin=origin) for bucket in buckets]


def _when_ready(
    root: RootFact, calls: tuple[Call, ...], buckets: tuple[Bucket, ...], origin: Origin
) -> list[Instruction]:
    inside = whole_backward(backward_chain(calls, root)) if root.path == "in_graph" else None
    if inside is None:
        return [ReduceStart(bucket.name, AXIS, origin=origin) for bucket in buckets]
    return [
        ReduceStart(start.bucket.name, AXIS, after=start.place, origin=origin)
        for start in starts(inside, buckets)
    ]
