"""`cast`: a bucket's buffer to the wire's dtype before it is sent, and back after it came."""

from __future__ import annotations

from time import perf_counter

from sgplan.interpreter.reducer import DTYPES, Reducer
from sgplan.interpreter.registry import handles
from sgplan.planner.program import Cast


def _can_cast(state: Reducer, instruction: Cast) -> bool:
    buffer = state.buffers[instruction.bucket]
    outbound = instruction.target == buffer.bucket.wire
    return outbound and buffer.missing == 0


@handles(Cast, ready=_can_cast)
def cast(state: Reducer, instruction: Cast) -> None:
    """Out: make the wire buffer. Back: write its values into the flat buffer."""
    buffer = state.buffers[instruction.bucket]
    began = perf_counter()
    if buffer.wire is None:
        buffer.wire = buffer.flat.to(DTYPES[instruction.target])
    else:
        buffer.flat.copy_(buffer.wire)
    state.elsewhere += perf_counter() - began
