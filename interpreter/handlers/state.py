"""`deliver`: the reduced gradients become the parameters' `.grad`."""

from __future__ import annotations

from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.registry import handles
from sgplan.planner.program import Deliver


def _backward_over(state: Reducer, instruction: Deliver) -> bool:
    return state.closing


@handles(Deliver, ready=_backward_over)
def deliver(state: Reducer, instruction: Deliver) -> None:
    state.deliver()
