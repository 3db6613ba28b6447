"""The shape of one entry of the code index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HEADER = "sgplan 1\n\n"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of mistake.

    Attributes:
        code: `SG` and four digits.
        title: the mistake in a few words.
        why: a paragraph: what it means, why it is refused, what to do.
        bad: a plan that raises it; empty when no plan alone can.
        good: the same plan without the mistake.
        found: `check` from the text alone, `graph` against the captured graph, `run` while it runs.
        world: the world size that the examples are checked for.
    """

    code: str
    title: str
    why: str
    bad: str = ""
    good: str = ""
    found: Literal["check", "graph", "run"] = "check"
    world: int | None = None


def plan(body: str) -> str:
    """An example with its header."""
    return f"{HEADER}{body}\n"
