"""How far the planned run may be from the plain one: what the plan itself declares, no more.

    nothing changes numbers                    every bit
    fp32, other kernels (`lower_roots`, …)     forward 1e-6, gradient 1e-5
    bf16 or fp16 where something is computed   forward 4 eps, gradient 8 eps of that format
    bf16 or fp16 on the wire                   gradient 4 eps of that format
    sums of more than two ranks                gradient 1.2e-7 for each rank: their order is free
    another optimizer                          update 1e-5

Each is relative to the largest absolute value of a tensor; an update is relative to the largest
change of its parameter. The plan's own `verify { forward, gradient }` wins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sgplan.grammar.plan import Plan

EPS32 = 2.0**-23
EPS = {"bf16": 2.0**-7, "fp16": 2.0**-10, "bfloat16": 2.0**-7, "float16": 2.0**-10}
FORWARD, GRADIENT, UPDATE = 1e-6, 1e-5, 1e-5
_KERNELS = frozenset(
    {"lower_roots", "steer_fusion", "substitute_kernels", "cast_precision", "recompute", "guards"}
)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest relative differences that are allowed; 0 asks for every bit."""

    forward: float = 0.0
    gradient: float = 0.0
    update: float = 0.0


def tolerance(
    plan: Plan, names: Collection[str], world: int, computed: Collection[str]
) -> Tolerance:
    """What a plan allows.

    Args:
        names: of the passes that act and can change numbers.
        world: ranks.
        computed: number formats that the script computes in, as torch names them.
    """
    forward = gradient = update = 0.0
    if _KERNELS.intersection(names):
        declared = {word for p in plan.precisions for word in (p.compute, p.params)}
        eps = max((EPS.get(each, 0.0) for each in {*declared, *computed}), default=0.0)
        forward, gradient = (4 * eps, 8 * eps) if eps else (FORWARD, GRADIENT)
    if "insert_reductions" in names and world > 2:
        gradient = max(gradient, world * EPS32)
    if "compress_wire" in names:
        gradient = max(gradient, *(4 * EPS.get(sync.wire, 0.0) for sync in plan.syncs))
    if "insert_updates" in names:
        update = UPDATE
    wanted = plan.verify
    return Tolerance(
        forward if wanted.forward is None else wanted.forward,
        gradient if wanted.gradient is None else wanted.gradient,
        update,
    )
