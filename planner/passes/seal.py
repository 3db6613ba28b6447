"""Writes the contract's digest into the program; nothing may change behind it.

contract (nothing)   ->   contract 77b1e0d4
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sgplan.grammar.plan import Plan
from sgplan.planner.digest import contract_digest, contract_text
from sgplan.planner.facts import Facts
from sgplan.planner.program import PLANNED_PATHS, Program


@dataclass(frozen=True, slots=True)
class Seal:
    name: ClassVar[str] = "seal"
    needs: ClassVar[frozenset[str]] = frozenset({"lifetimes", "updates"})
    promises: ClassVar[frozenset[str]] = frozenset({"digests"})

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        texts = [
            contract_text(plan, facts, root, [b for b in program.buckets if b.root == root.name])
            for root in facts.roots
            if root.path in PLANNED_PATHS
        ]
        return replace(program, contract=contract_digest(texts) if texts else "")
