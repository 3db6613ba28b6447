"""How far the planned run may be from the plain one: what the plan itself declares, no more.

    nothing rounds otherwise                   every bit
    fp32, other kernels (`lower_roots`, …)     forward 1e-6, gradient 1e-5
    bf16 or fp16 where something is computed   forward 4 eps, gradient 8 eps of that format
    bf16 or fp16 on the wire                   gradient 4 eps of that format
    sums of more than two ranks                gradient 1 eps of its own format for each rank
    another optimizer                          update 1e-5, and rounding of the parameter's format
    parameters in 16 bits                      update 4 eps of the format of their gradients

Each is relative to the largest absolute value of a tensor; an update is relative to the largest
change of its parameter. The plan's own `verify { forward, gradient }` wins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sgplan.grammar.plan import Verify
from sgplan.planner.numerics import NumericChange

EPS32 = 2.0**-23
EPS = {"bf16": 2.0**-7, "fp16": 2.0**-10, "bfloat16": 2.0**-7, "float16": 2.0**-10}
FORWARD, GRADIENT, UPDATE = 1e-6, 1e-5, 1e-5
FORWARD_EPS, GRADIENT_EPS, WIRE_EPS = 4, 8, 4


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest relative differences that are allowed; 0 asks for every bit.

    Attributes:
        forward, gradient, update: whatever the format of a tensor.
        forward_eps, gradient_eps: the same in eps of the tensor's own format; the larger counts.
        low: eps of the coarsest 16-bit format that something is computed in; 0 without one.
        stored: whether parameters, and what is made from them, may have another format.
    """

    forward: float = 0.0
    gradient: float = 0.0
    update: float = 0.0
    forward_eps: int = 0
    gradient_eps: int = 0
    low: float = 0.0
    stored: bool = False


def tolerance(
    changes: Collection[NumericChange], wanted: Verify, world: int, computed: Collection[str]
) -> Tolerance:
    """What a plan allows in one step.

    Args:
        changes: what acts in that step.
        wanted: the plan's own numbers.
        world: ranks.
        computed: number formats that the script computes in, as torch names them.
    """
    rounds = {kind for change in changes for kind in change.rounds}
    forward = gradient = low = 0.0
    forward_eps = gradient_eps = 0
    if "kernels" in rounds:
        brought = {change.format for change in changes if "kernels" in change.rounds}
        low = max((EPS.get(each, 0.0) for each in {*brought, *computed}), default=0.0)
        forward, gradient = FORWARD, GRADIENT
        if low:
            forward, gradient = FORWARD_EPS * low, GRADIENT_EPS * low
        forward_eps, gradient_eps = FORWARD_EPS, GRADIENT_EPS
    if "sums" in rounds:
        gradient_eps = max(gradient_eps, world)
    for change in changes:
        if "wire" in change.rounds:
            gradient = max(gradient, WIRE_EPS * EPS[change.format])
    if wanted.forward is not None:
        forward, forward_eps = wanted.forward, 0
    if wanted.gradient is not None:
        gradient, gradient_eps = wanted.gradient, 0
    return Tolerance(
        forward,
        gradient,
        UPDATE if "update" in rounds else 0.0,
        forward_eps,
        gradient_eps,
        low,
        any(change.name == "store_parameters" for change in changes),
    )
