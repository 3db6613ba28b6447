"""`deliver`: the reduced gradients become the parameters' `.grad`."""

from __future__ import annotations

from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.registry import at_end, handles
from sgplan.planner.program import Deliver


@handles(Deliver, ready=at_end)
def deliver(state: Reducer, instruction: Deliver) -> None:
    state.deliver()
