"""`free`: values end here. Saved activations are autograd's own; wire buffers are let go."""

from __future__ import annotations

from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.registry import at_end, handles
from sgplan.planner.program import Free


@handles(Free, ready=at_end)
def free(state: Reducer, instruction: Free) -> None:
    """Drop every value that the reducer owns; the compiled node has dropped the others already."""
    for value in instruction.values:
        name, _, part = value.partition(".")
        if part == "wire":
            state.buffers[name].wire = None
