"""Says where the values that the program owns end: saved activations and wire buffers.

    run bwd0 (saved0, …) -> grads        run bwd0 (saved0, …) -> grads
    wait b0                         ->   wait b0
    cast b0 bf16 -> f32                  cast b0 bf16 -> f32
    deliver model grads (62)             free saved0
                                         free b0.wire
                                         deliver model grads (62)

Buckets are kept from step to step, and inputs, outputs and gradients belong to the script: none of
them is ever freed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts
from sgplan.planner.graphs import Call, calls_of, main_calls
from sgplan.planner.origins import asked
from sgplan.planner.passes.base import with_phase
from sgplan.planner.program import Deliver, Free, Instruction, Program, Run, wire_buffer


@dataclass(frozen=True, slots=True)
class ReleaseValues:
    name: ClassVar[str] = "release_values"
    needs: ClassVar[frozenset[str]] = frozenset({"wire"})
    promises: ClassVar[frozenset[str]] = frozenset({"lifetimes"})

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        lines = list(program.phase("backward"))
        compiled = {graph.root for graph in program.graphs if graph.direction != "eager"}
        calls = calls_of(facts)
        for root in facts.roots:
            saved = _saved(calls, root.name) if root.name in compiled else ()
            wires = tuple(
                wire_buffer(bucket.name)
                for bucket in program.buckets
                if bucket.root == root.name and bucket.wire != bucket.dtype
            )
            frees = (
                Free(saved, asked(plan.capture_of(root.name), "engine")),
                Free(wires, asked(plan.sync_of(root.name), "wire")),
            )
            at = _end_of(lines, program, root.name)
            lines[at:at] = [free for free in frees if free.values]
        return with_phase(program, "backward", lines)


def _saved(calls: Sequence[Call], root: str) -> tuple[str, ...]:
    backwards = [call for call in main_calls(calls, root) if call.backward is not None]
    return tuple(call.saved for call in reversed(backwards))


def _end_of(lines: Sequence[Instruction], program: Program, root: str) -> int:
    """Before the root's `deliver`, or behind its last `run` where nothing is delivered."""
    for place, line in enumerate(lines):
        if isinstance(line, Deliver) and line.root == root:
            return place
    own = {graph.name for graph in program.graphs if graph.root == root}
    return 1 + max(
        (i for i, r in enumerate(lines) if isinstance(r, Run) and r.graph in own), default=-1
    )
