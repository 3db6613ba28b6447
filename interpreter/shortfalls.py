"""What the plan names or wants and this script does not have: said, never passed over.

Regions that run as plain Python, roots without a captured call, `model` blocks that name nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.interpreter import events
from sgplan.planner.facts import MissFact

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank


def missed(rank: Rank, miss: MissFact) -> None:
    """A region runs as plain Python: report it, list it with the root that compiles."""
    miss = replace(miss, reason=rank.operators.advice(miss.reason) or miss.reason)
    compiled = [root for root in rank.roots if root.engine == "inductor" or rank.mode == "plan"]
    for root in compiled[:1] if len(compiled) > 1 else compiled:
        root.misses.append(miss)
    rank.changed()
    rank.emit(events.CaptureMissed, miss.where, miss.reason)


def uncaptured(rank: Rank) -> None:
    """List every root that trained without a captured call although it should have had one."""
    for root in rank.roots:
        if root.engine == "inductor" and root.called and not root.captures:
            miss = MissFact(root.cls, "no call of it was captured")
            root.misses.append(miss)
            rank.changed()
            rank.once(events.CaptureMissed, root.name, miss.reason)


def unmatched_models(rank: Rank) -> list[Diagnostic]:
    """`model` blocks that name nothing in this script."""
    found = ", ".join(f"`{root.cls}`" for root in rank.roots)
    return [
        Diagnostic(
            "SG0507",
            f"`{model.is_}` names no model of the script (nth = {model.nth})",
            None if (span := model.origin("is")) is None else Label(span),
            notes=(f"the script's models are {found}",),
            help="name one of them as `module:Class`",
        )
        for model in rank.names.unmatched()
    ]
