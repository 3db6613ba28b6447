"""The passes in their one order, and `lower`, which runs them.

    plan + facts  ->  program, legal after every pass

Knows the order and the seam between passes; what a pass does is in its own file.
"""

from __future__ import annotations

from collections.abc import Callable

from sgplan.grammar.plan import Plan
from sgplan.planner import legal
from sgplan.planner.facts import Facts
from sgplan.planner.passes.assign_buckets import AssignBuckets
from sgplan.planner.passes.base import Pass, order_faults
from sgplan.planner.passes.compress_wire import CompressWire
from sgplan.planner.passes.insert_reductions import InsertReductions
from sgplan.planner.passes.insert_updates import InsertUpdates
from sgplan.planner.passes.lower_roots import LowerRoots
from sgplan.planner.passes.release_values import ReleaseValues
from sgplan.planner.passes.seal import Seal
from sgplan.planner.program import Program

PASSES: tuple[Pass, ...] = (
    # Buckets first: the list must not depend on what was captured.
    AssignBuckets(),
    LowerRoots(),
    InsertReductions(),
    CompressWire(),
    # After the casts, whose buffers end here too.
    ReleaseValues(),
    InsertUpdates(),
    Seal(),
)

if _faults := order_faults(PASSES):
    raise RuntimeError("; ".join(_faults))

AfterPass = Callable[[Pass, Program], None]


def start_program(plan: Plan, facts: Facts) -> Program:
    """The program before the first pass: who it is for, and nothing to do."""
    return Program(
        rank=facts.rank,
        world=facts.world,
        mesh=plan.mesh.axes,
        source=plan.source,
        plan=plan.digest,
        contract="",
    )


def lower(plan: Plan, facts: Facts, *, after_pass: AfterPass | None = None) -> Program:
    """One rank's program.

    Args:
        after_pass: sees every pass and the program it made, after the legality check.

    Raises:
        Refused: a pass made a program that is not legal, which is a fault of ours (SG0510).
    """
    program = start_program(plan, facts)
    done: set[str] = set()
    for each in PASSES:
        before, program = program, each.apply(program, plan, facts)
        done |= each.promises
        legal.require(program, before, each.name, frozenset(done))
        if after_pass is not None:
            after_pass(each, program)
    return program
