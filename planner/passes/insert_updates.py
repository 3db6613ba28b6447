"""Lists one `update` for each optimizer the script built.

    (nothing)   ->   update AdamW optimizer=fused

An optimizer that cannot be fused or compiled stays as written; its fact says why and the listing
repeats it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts
from sgplan.planner.origins import asked
from sgplan.planner.passes.base import with_phase
from sgplan.planner.program import Instruction, Program, Update


@dataclass(frozen=True, slots=True)
class InsertUpdates:
    name: ClassVar[str] = "insert_updates"
    needs: ClassVar[frozenset[str]] = frozenset({"runs"})
    promises: ClassVar[frozenset[str]] = frozenset({"updates"})

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        names = optimizer_names(facts)
        lines: list[Instruction] = [
            Update(name, fact.kind, asked(plan.update_of(fact.root), "optimizer"))
            for name, fact in zip(names, facts.optimizers, strict=True)
        ]
        return with_phase(program, "update", lines)


def optimizer_names(facts: Facts) -> tuple[str, ...]:
    """Class names, numbered from 0 where a class occurs more than once."""
    total = Counter(fact.cls for fact in facts.optimizers)
    seen: Counter[str] = Counter()
    names: list[str] = []
    for fact in facts.optimizers:
        names.append(f"{fact.cls}.{seen[fact.cls]}" if total[fact.cls] > 1 else fact.cls)
        seen[fact.cls] += 1
    return tuple(names)
