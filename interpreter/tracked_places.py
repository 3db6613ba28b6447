"""Names of the places that a program counter knows: instructions, and the calls around them.

The screen finds the measured seconds of a line of the listing under the same name.
"""

from __future__ import annotations

from sgplan.planner.program import (
    Cast,
    Deliver,
    Free,
    Instruction,
    ReduceStart,
    Run,
    Update,
    Wait,
)


def place_of(instruction: Instruction) -> str | None:
    """`reduce.start b0`, `wait b0`: short, and equal in every rank that has the instruction.

    None where a rank cannot stay: to free values takes no time.
    """
    match instruction:
        case Run():
            return f"run {instruction.graph}"
        case Cast():
            return f"cast {instruction.bucket} {instruction.target}"
        case ReduceStart():
            return f"reduce.start {instruction.bucket}"
        case Wait():
            return f"wait {instruction.buckets[0]}"
        case Deliver():
            return f"deliver {instruction.root}"
        case Free():
            return None
        case Update():
            return update(instruction.optimizer)


def stays(instruction: Instruction) -> bool:
    """Whether a rank may stay at an instruction for others' sake, or for long.

    The first reduction of a group may wait for the other ranks too; it is in a step that is told in
    full.
    """
    return isinstance(instruction, Wait | Run | Update)


def forward(root: str) -> str:
    """The call of a root, from its entry to its return."""
    return f"forward {root}"


def backward() -> str:
    """A backward of the script, all roots together."""
    return "backward"


def update(optimizer: str) -> str:
    """The step of an optimizer, by its name in the program."""
    return f"update {optimizer}"


def in_flight(bucket: str) -> str:
    """A reduction from its start to its end; no place of the counter, but of a trace."""
    return f"reduce {bucket}"
