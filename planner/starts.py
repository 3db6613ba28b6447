"""When each bucket's reduction can begin, judged on a captured backward graph.

Starts keep list order even where gradients appear in another, so a bucket begins behind the later
of its own last gradient and the start before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgplan.planner.facts import GradientFact, GraphFact
from sgplan.planner.graphs import last_producer
from sgplan.planner.program import Bucket


@dataclass(frozen=True, slots=True)
class Start:
    """One bucket's beginning.

    Attributes:
        own: where its own last gradient becomes final.
        behind: the gradient it really waits for: its own, or a later one of an earlier bucket.
        heavy: matmuls and convolutions that still run after it.
    """

    bucket: Bucket
    own: GradientFact
    behind: GradientFact
    heavy: int

    @property
    def place(self) -> str:
        """`aten.mm.default of blocks.4.qkv`; without a module at the root's own level."""
        of = f" of {self.behind.module}" if self.behind.module else ""
        return self.behind.op + of


def starts(graph: GraphFact, buckets: Sequence[Bucket]) -> tuple[Start, ...]:
    """The starts of one root's buckets inside `graph`, which makes all their gradients."""
    found: list[Start] = []
    behind: GradientFact | None = None
    for bucket in buckets:
        own = last_producer(graph, (slot.parameter for slot in bucket.slots))
        behind = own if behind is None or own.position > behind.position else behind
        heavy = sum(position > behind.position for position in graph.heavy_after)
        found.append(Start(bucket, own, behind, heavy))
    return tuple(found)
