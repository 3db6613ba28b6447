"""Names for captured graphs, and which backward can hold a root's reductions.

Knows facts only. One region can be captured several times (evaluation, another batch size); the
capture that trains is the one a listed line runs, the others are its variants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sgplan.planner.facts import Facts, GradientFact, GraphFact, RootFact


@dataclass(frozen=True, slots=True)
class Call:
    """One forward graph and its backward, under their names in the program.

    Attributes:
        number: `0` in `fwd0` and `saved0`; variants share it.
        variant: 0 for the call that the program lists, counted up for the others of its region.
        backward: None for a call without gradients.
    """

    root: str
    number: int
    variant: int
    forward: GraphFact
    backward: GraphFact | None

    @property
    def suffix(self) -> str:
        return f"{self.number}.{self.variant}" if self.variant else str(self.number)

    @property
    def saved(self) -> str:
        """The name of the activations kept for the backward."""
        return f"saved{self.suffix}"


def calls_of(facts: Facts) -> tuple[Call, ...]:
    """Every captured call of every root, numbered over all roots, in the order of capture."""
    calls: list[Call] = []
    number = 0
    for root in facts.roots:
        for pairs in _by_region(root.graphs):
            ordered = sorted(pairs, key=lambda pair: pair[1] is None)  # stable: training first
            calls += [
                Call(root.name, number, variant, forward, backward)
                for variant, (forward, backward) in enumerate(ordered)
            ]
            number += 1
    return tuple(calls)


def as_written(facts: Facts) -> Facts:
    """The facts with every graph as the user knows it: selectors and op lists read this."""
    roots = (replace(root, graphs=root.written or root.graphs) for root in facts.roots)
    return replace(facts, roots=tuple(roots))


def main_calls(calls: Iterable[Call], root: str) -> tuple[Call, ...]:
    """The calls of one root that the program lists, in forward order."""
    return tuple(call for call in calls if call.root == root and call.variant == 0)


Pair = tuple[GraphFact, GraphFact | None]


def _by_region(graphs: Iterable[GraphFact]) -> list[list[Pair]]:
    """Joins each backward to the last forward of its region that has none yet."""
    regions: dict[str, list[Pair]] = {}
    for graph in graphs:
        pairs = regions.setdefault(graph.region, [])
        if graph.direction == "forward":
            pairs.append((graph, None))
            continue
        place = next((i for i in reversed(range(len(pairs))) if pairs[i][1] is None), None)
        if place is not None:
            pairs[place] = (pairs[place][0], graph)
    return [pairs for pairs in regions.values() if pairs]


def covers(graph: GraphFact | None, root: RootFact) -> bool:
    """Whether one backward graph makes every gradient of the root.

    Only then can its reductions stand inside it: with gradients in two graphs, a `wait` at the
    end of the first would wait for a bucket that only the second can start.
    """
    if graph is None or not root.parameters:
        return False
    made = {gradient.parameter for gradient in graph.gradients}
    return made.issuperset(parameter.name for parameter in root.parameters)


def covering_call(calls: Iterable[Call], root: RootFact) -> Call | None:
    """The listed call whose backward holds all gradients of the root, if there is one."""
    return next((c for c in main_calls(calls, root.name) if covers(c.backward, root)), None)


def last_ready(graph: GraphFact, parameters: Iterable[str]) -> GradientFact:
    """The gradient among `parameters` that its reduction gets last."""
    wanted = set(parameters)
    return max((g for g in graph.gradients if g.parameter in wanted), key=lambda g: g.ready)
