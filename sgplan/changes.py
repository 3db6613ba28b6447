"""Whether a plan would do anything that the script would not do by itself.

The answer behind `plan --detailed-exitcode`. Pure: plan and captured facts in, sentences out.
"""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.plan import Plan
from sgplan.planner.artefact import Part
from sgplan.planner.facts import RootFact
from sgplan.planner.numerics import active_numerics
from sgplan.planner.program import PLANNED_PATHS

# Words that leave a thing as the script has it; every other written value is a change.
_AS_WRITTEN = {"as_written", "auto", "contract", "default", "stock"}


def changes(plan: Plan, part: Part) -> list[str]:
    """What the plan does to the script on one rank, one phrase each; empty for a mere observer."""
    facts = part.facts
    found = [text for root in facts.roots for text in _of_root(plan, root)]
    found += [f"{o.cls} is {o.kind}" for o in facts.optimizers if o.kind != "as_written"]
    found += [f"{change.name} changes numerics" for change in active_numerics(plan, facts)]
    return found


def _of_root(plan: Plan, root: RootFact) -> Iterator[str]:
    if root.path in PLANNED_PATHS:
        yield f"{root.name} reduces its gradients by {root.path}"
    capture = plan.capture_of(root.name)
    for name in capture.written:
        value = getattr(capture, name, None)
        if name != "model" and value not in _AS_WRITTEN:
            yield f"{root.name} is captured with {name} = {value}"
