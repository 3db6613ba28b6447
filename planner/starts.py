"""When each bucket's reduction can begin, judged on a captured backward graph.

Starts keep list order even where gradients appear in another, so a bucket begins behind the later
of its own last gradient and the start before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgplan.planner.facts import GradientFact, GraphFact
from sgplan.planner.graphs import last_ready
from sgplan.planner.program import Bucket


@dataclass(frozen=True, slots=True)
class Start:
    """One bucket's beginning.

    Attributes:
        own: the last of its own gradients.
        behind: the gradient it really waits for: its own, or a later one of an earlier bucket.
        place: the op behind which it starts (`aten.mm of blocks.4.qkv`); empty when its
            gradients need no op of the graph.
        heavy: matmuls and convolutions that still run after it.
    """

    bucket: Bucket
    own: GradientFact
    behind: GradientFact
    place: str
    heavy: int


def starts(graph: GraphFact, buckets: Sequence[Bucket]) -> tuple[Start, ...]:
    """The starts of one root's buckets inside `graph`, which makes all their gradients."""
    found: list[Start] = []
    behind: GradientFact | None = None
    for bucket in buckets:
        own = last_ready(graph, (slot.parameter for slot in bucket.slots))
        behind = own if behind is None or own.ready > behind.ready else behind
        heavy = sum(position > behind.ready for position in graph.heavy_after)
        found.append(Start(bucket, own, behind, _place(graph, behind), heavy))
    return tuple(found)


def _place(graph: GraphFact, gradient: GradientFact) -> str:
    """The op behind which the gradient's reduction can begin, with its module.

    Most ops have one overload, `default`; only another is worth its place.
    """
    if gradient.ready < 0 or not gradient.op:
        return ""
    if gradient.ready == gradient.position:
        op, module = gradient.op, gradient.module
    else:
        op, module = graph.ops[gradient.ready].op, graph.ops[gradient.ready].module
    op = op.removesuffix(".default")
    return f"{op} of {module}" if module else op
