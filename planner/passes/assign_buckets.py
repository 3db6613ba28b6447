"""Gives every root under planned data parallel its buckets.

    (nothing)   ->   bucket b0 … / bucket b1 …

Roots that the stock reducer serves, or none, get no bucket; the root's line says which path it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sgplan.grammar.plan import Plan
from sgplan.planner.buckets import bucket_list
from sgplan.planner.facts import Facts, RootFact
from sgplan.planner.origins import asked
from sgplan.planner.program import PLANNED_PATHS, Bucket, Program

WIRES = {"as_written": None, "bf16": "bf16", "fp16": "f16"}


def root_buckets(plan: Plan, root: RootFact, number: int = 0) -> tuple[Bucket, ...]:
    """The buckets of one root under the plan; the first is named `b<number>`."""
    sync = plan.sync_of(root.name)
    return bucket_list(
        root.name,
        root.parameters,
        bucket=sync.bucket,
        first_bucket=sync.first_bucket,
        wire=WIRES[sync.wire],
        number=number,
        origin=asked(sync, "bucket"),
    )


@dataclass(frozen=True, slots=True)
class AssignBuckets:
    name: ClassVar[str] = "assign_buckets"
    needs: ClassVar[frozenset[str]] = frozenset()
    promises: ClassVar[frozenset[str]] = frozenset({"buckets"})

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        buckets: list[Bucket] = []
        for root in facts.roots:
            if root.path in PLANNED_PATHS:
                buckets += root_buckets(plan, root, number=len(buckets))
        return replace(program, buckets=tuple(buckets))
