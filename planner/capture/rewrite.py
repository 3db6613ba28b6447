"""What the plan changes in a Dynamo graph before it is differentiated: passes, in one list.

A pass here sees the script's calls and has its gradients derived for it. It returns a graph of its
own and leaves the one that it is given as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch.fx as fx

from sgplan.planner import effects
from sgplan.planner.capture.effects import dynamo_accesses
from sgplan.planner.capture.provenance import memory_names
from sgplan.planner.facts import Placed


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A Dynamo graph on its way through the passes.

    Attributes:
        gm: the graph.
        inputs: live tensors that passes take beside the graph's own inputs; their placeholders
            stand behind those, in this order.
        placed: sites of rules with a kernel.
    """

    gm: fx.GraphModule
    inputs: tuple[Any, ...] = ()
    placed: tuple[Placed, ...] = ()

    def called(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """What Dynamo shall call in the place of `call`: the same with the inputs of passes."""
        if not self.inputs:
            return call
        added = self.inputs

        def with_added(*given: Any) -> Any:
            return call(*given, *added)

        return with_added


class GraphPass(Protocol):
    """One change of a Dynamo graph that a clause of the plan asks for."""

    name: ClassVar[str]  # as listings and errors have it

    @property
    def key(self) -> str:
        """Part of the key of compiled code: equal only for passes that make the same of a graph."""
        ...

    def apply(self, graph: Rewritten) -> Rewritten:
        """The graph after the pass."""
        ...


def rewritten(
    gm: fx.GraphModule, passes: Sequence[GraphPass], modules: Collection[str] = ()
) -> Rewritten:
    """The graph after all passes.

    Args:
        modules: module paths of the unwrapped model.

    Raises:
        Refused: a pass did not keep effects in order, which is a fault of ours (SG0540).
    """
    graph = Rewritten(gm)
    names = memory_names(gm, modules) if passes else ()
    for each in passes:
        before, graph = graph, each.apply(graph)
        if graph.gm is not before.gm:
            effects.require(
                each.name,
                dynamo_accesses(before.gm, names, modules),
                dynamo_accesses(graph.gm, names, modules),
            )
    return graph
