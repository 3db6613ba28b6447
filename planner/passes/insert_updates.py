"""Lists one `update` for each optimizer the script built.

    (nothing)   ->   update AdamW optimizer=fused

An optimizer that cannot be fused or compiled stays as written; its fact says why and the listing
repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts, numbered
from sgplan.planner.origins import asked
from sgplan.planner.passes.base import with_phase
from sgplan.planner.program import Instruction, Program, Update


@dataclass(frozen=True, slots=True)
class InsertUpdates:
    name: ClassVar[str] = "insert_updates"
    needs: ClassVar[frozenset[str]] = frozenset({"runs"})
    promises: ClassVar[frozenset[str]] = frozenset({"updates"})

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        names = numbered([fact.cls for fact in facts.optimizers])
        lines: list[Instruction] = [
            Update(name, fact.kind, asked(plan.update_of(fact.root), "optimizer"))
            for name, fact in zip(names, facts.optimizers, strict=True)
        ]
        return with_phase(program, "update", lines)
