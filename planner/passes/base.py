"""What a pass is: valid program in, valid program out, and its order needs as class data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts
from sgplan.planner.program import Instruction, PhaseName, Program


class Pass(Protocol):
    """A step of lowering, a frozen dataclass without state.

    Attributes:
        name: a verb and its object, the file's name.
        needs: what earlier passes must have promised.
        promises: what holds for the program from here on.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    promises: ClassVar[frozenset[str]]

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        """The program with this pass's part in it."""
        ...


def with_phase(program: Program, name: PhaseName, lines: Iterable[Instruction]) -> Program:
    """The program with other instructions in one of its phases."""
    body = tuple(lines)
    phases = (replace(p, instructions=body) if p.name == name else p for p in program.phases)
    return replace(program, phases=tuple(phases))


def order_faults(passes: Sequence[Pass]) -> list[str]:
    """What is wrong with the order of a pipeline, one sentence each."""
    faults: list[str] = []
    promised: dict[str, str] = {}
    for each in passes:
        missing = sorted(each.needs - promised.keys())
        if missing:
            faults.append(
                f"`{each.name}` needs {', '.join(missing)}, which no earlier pass promises"
            )
        for promise in sorted(each.promises):
            if promise in promised:
                faults.append(f"`{each.name}` promises {promise}, as `{promised[promise]}` does")
            promised.setdefault(promise, each.name)
    return faults
