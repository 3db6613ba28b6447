"""Casts a bucket to its wire dtype around the reduction, where the plan asks for a smaller one.

reduce.start b0 axis=data        cast b0 f32 -> bf16
wait b0                     ->   reduce.start b0 axis=data
                                 wait b0
                                 cast b0 bf16 -> f32
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts
from sgplan.planner.origins import asked
from sgplan.planner.passes.base import with_phase
from sgplan.planner.program import Bucket, Cast, Instruction, Origin, Program, ReduceStart, Wait


@dataclass(frozen=True, slots=True)
class CompressWire:
    name: ClassVar[str] = "compress_wire"
    needs: ClassVar[frozenset[str]] = frozenset({"reductions"})
    promises: ClassVar[frozenset[str]] = frozenset({"wire"})

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        narrow = {b.name: b for b in program.buckets if b.wire != b.dtype}
        lines = [line for old in program.phase("backward") for line in _around(old, narrow, plan)]
        return with_phase(program, "backward", lines)


def _around(line: Instruction, narrow: Mapping[str, Bucket], plan: Plan) -> Iterable[Instruction]:
    if isinstance(line, ReduceStart) and line.bucket in narrow:
        bucket = narrow[line.bucket]
        yield Cast(bucket.name, bucket.dtype, bucket.wire, _origin(plan, bucket))
    yield line
    if isinstance(line, Wait):
        for bucket in (narrow[name] for name in line.buckets if name in narrow):
            yield Cast(bucket.name, bucket.wire, bucket.dtype, _origin(plan, bucket))


def _origin(plan: Plan, bucket: Bucket) -> Origin:
    return asked(plan.sync_of(bucket.root), "wire")
