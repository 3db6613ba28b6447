"""Which clause asked for something: from a block of the plan to the `Origin` a program carries."""

from __future__ import annotations

from sgplan.grammar.plan import Block
from sgplan.planner.program import Origin


def asked(block: Block, attribute: str) -> Origin:
    """The attribute's address and place; without a span when its default applied."""
    return Origin(f"{block.address}.{attribute}", block.origin(attribute))
