"""Which blocks of a plan are carried out in captured graphs, so that a model needs one."""

from __future__ import annotations

from sgplan.grammar.plan import Capture, Fuse, Guard, Plan, Precision, Recompute, Separate
from sgplan.planner.guard_lines import holding, needs_graph

Needing = Fuse | Separate | Recompute | Guard | Precision


def needing_graph(plan: Plan, root: str | None) -> list[Needing]:
    """The blocks for one root that need a graph, kind by kind as the plan writes them.

    Args:
        root: None for those that are for every root.
    """
    blocks = (*plan.fuses, *plan.separates, *plan.recomputes)
    return [
        *(block for block in blocks if block.model in (None, root)),
        *(guard for guard in holding(plan, root) if needs_graph(guard)),
        *(b for b in plan.precisions if b.model in (None, root) and b.changes_graph),
    ]


def anywhere(plan: Plan) -> bool:
    """Whether any block of the plan needs a graph."""
    return changes_any(plan) or any(map(needs_graph, plan.guards))


def changes_any(plan: Plan) -> bool:
    """Whether any block makes another graph of what the script has, or compiles it otherwise."""
    rules = bool(plan.fuses or plan.separates or plan.recomputes)
    return rules or any(block.changes_graph for block in plan.precisions)


def clause_needing(capture: Capture) -> str:
    """The first clause of a `capture` block that needs a graph; empty when none does."""
    needs = (
        (capture.engine == "inductor", "engine = inductor"),
        (capture.graph == "whole", "graph = whole"),
        (capture.region is not None, "region"),
        (capture.eval == "compiled", "eval = compiled"),
        (capture.autotune != "off", "autotune"),
        (capture.cuda_graphs != "off", "cuda_graphs"),
        (capture.rounding != "default", "rounding"),
        (capture.random != "default", "random"),
    )
    return next((f"`capture.{clause}`" for holds, clause in needs if holds), "")
