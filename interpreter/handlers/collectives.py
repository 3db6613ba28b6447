"""`reduce.start` and `wait`: the sum of a bucket over the data axis, begun early, awaited late."""

from __future__ import annotations

from time import perf_counter

import torch.distributed as dist

from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.registry import at_end, handles
from sgplan.planner.program import ReduceStart, Wait


def _gradients_there(state: Reducer, instruction: ReduceStart) -> bool:
    return instruction.when == "ready" and not state.buffers[instruction.bucket].missing


@handles(ReduceStart, ready=_gradients_there)
def reduce_start(state: Reducer, instruction: ReduceStart) -> None:
    """Begin the sum; the gradients were scaled by 1 / world size when they were copied in."""
    buffer = state.buffers[instruction.bucket]
    state.starting(buffer)
    # Last, because from here on the backend's threads want the same cores.
    began = perf_counter()
    buffer.work = dist.all_reduce(buffer.sent, group=state.setup.group, async_op=True)
    state.elsewhere += perf_counter() - began


@handles(Wait, ready=at_end)
def wait(state: Reducer, instruction: Wait) -> None:
    """Block until the buckets are reduced, in this order."""
    for name in instruction.buckets:
        state.wait_for(state.buffers[name])
