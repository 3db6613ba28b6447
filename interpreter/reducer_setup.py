"""What a reducer is made of: everything it is given, nothing it becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from sgplan.interpreter.track import Track
from sgplan.planner.program import Bucket, Instruction


@dataclass(frozen=True, slots=True)
class ReducerSetup:
    """What a reducer is made of.

    Attributes:
        root: name of the root.
        names: of the parameters, in registration order.
        parameters: the same, as tensors.
        buckets: the root's buckets, in launch order.
        instructions: the root's part of the backward phase, runs excluded.
        group: the process group of data parallel.
        find_unused: parameters may get no gradient; agree on which by a bitmap.
        in_graph: whether compiled graphs may take gradients over.
        timeout: seconds one wait may last, None for the group's own.
        track: told of the instructions.
        lost: explains a failed wait; called with (root, exception), returns what to raise.
    """

    root: str
    names: Sequence[str]
    parameters: Sequence[torch.Tensor]
    buckets: Sequence[Bucket]
    instructions: Sequence[Instruction]
    group: dist.ProcessGroup
    find_unused: bool
    in_graph: bool
    timeout: float | None
    track: Track
    lost: Callable[[str, BaseException], BaseException]
