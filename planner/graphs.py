"""Names for captured graphs, and which backward can hold a root's reductions.

Knows facts only. One region can be captured several times (evaluation, another batch size); the
capture that trains is the one a listed line runs, the others are its variants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sgplan.planner.facts import Facts, GradientFact, GraphFact, OpFact, RootFact
from sgplan.planner.program import Bucket


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


def backward_chain(calls: Iterable[Call], root: RootFact) -> tuple[Call, ...]:
    """The listed calls of a root in the order of their backwards, if these make its gradients.

    Empty unless every parameter gets its gradient from exactly one of them: a gradient that is
    summed over two graphs is final only when autograd has accumulated it, so hooks reduce it.
    """
    chain = tuple(c for c in reversed(main_calls(calls, root.name)) if c.backward is not None)
    made = Counter(g.parameter for call in chain if call.backward for g in call.backward.gradients)
    wanted = [parameter.name for parameter in root.parameters]
    return chain if wanted and all(made[name] == 1 for name in wanted) else ()


def whole_backward(chain: Iterable[Call]) -> GraphFact | None:
    """The backwards of a chain as one graph, positions counted through; None for an empty chain."""
    graphs = [call.backward for call in chain if call.backward is not None]
    if not graphs:
        return None
    ops: tuple[OpFact, ...] = ()
    gradients: tuple[GradientFact, ...] = ()
    heavy: tuple[int, ...] = ()
    for graph in graphs:
        gradients += tuple(_shifted(gradient, len(ops)) for gradient in graph.gradients)
        heavy += tuple(len(ops) + position for position in graph.heavy_after)
        ops += graph.ops
    return replace(graphs[0], ops=ops, gradients=gradients, heavy_after=heavy)


def _shifted(gradient: GradientFact, by: int) -> GradientFact:
    """The gradient behind `by` further ops; a gradient that needs no op of its graph stays so."""
    handed_over = None if gradient.handed_over is None else gradient.handed_over + by
    position = gradient.position + by if gradient.position >= 0 else max(by - 1, -1)
    return replace(gradient, position=position, handed_over=handed_over)


def finishing(chain: Iterable[Call], buckets: Iterable[Bucket]) -> dict[int, tuple[str, ...]]:
    """By call number, variants included: the buckets whose last gradient its backward makes."""
    found: dict[int, tuple[str, ...]] = {}
    rest = {bucket.name: {slot.parameter for slot in bucket.slots} for bucket in buckets}
    for call in chain:
        made = {g.parameter for g in call.backward.gradients} if call.backward else set[str]()
        rest = {name: wanted - made for name, wanted in rest.items()}
        found[call.number] = tuple(name for name, wanted in rest.items() if not wanted)
        rest = {name: wanted for name, wanted in rest.items() if wanted}
    return found


def last_ready(graph: GraphFact, parameters: Iterable[str]) -> GradientFact:
    """The gradient among `parameters` that its reduction gets last."""
    wanted = set(parameters)
    return max((g for g in graph.gradients if g.parameter in wanted), key=lambda g: g.ready)
