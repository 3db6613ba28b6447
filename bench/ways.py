"""The ways a script is run, and the bars that a plan must clear against the same thing by hand.

Data only: no processes, no statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the training script.

    Attributes:
        args: arguments of the script.
        plan: text of the plan, None by hand.
        cache: ways of one cache name compile the same graphs, so only the first of them is cold;
            None when nothing is compiled.
    """

    name: str
    args: tuple[str, ...] = ()
    plan: str | None = None
    cache: str | None = None


EMPTY = "sgplan 1\n"
BEST = "sgplan 1\n\ncapture { engine = inductor }\nupdate  { optimizer = fused }\n"
NO_SMALL_BUCKET = f"{BEST}sync    {{ first_bucket = 25MiB }}\n"
FUSED, COMPILE = ("--fused",), ("--compile",)

EAGER = Way("eager DDP")
EAGER_FUSED = Way("eager DDP, fused", FUSED)
COMPILED = Way("DDP + compile", COMPILE, cache="by-hand")
COMPILED_FUSED = Way("DDP + compile, fused", (*COMPILE, *FUSED), cache="by-hand")
PLAN_EAGER = Way("plan, eager as written", (), EMPTY)
PLAN_EAGER_FUSED = Way("plan, eager, fused as written", FUSED, EMPTY)
PLAN_COMPILED = Way("plan, compile as written", COMPILE, EMPTY, cache="as-written")
PLAN_COMPILED_FUSED = Way(
    "plan, compile, fused as written", (*COMPILE, *FUSED), EMPTY, cache="as-written"
)
PLAN_BEST = Way("plan, inductor + fused", (), BEST, cache="planned")
PLAN_NO_SMALL_BUCKET = Way(
    "plan, inductor + fused, no small bucket", (), NO_SMALL_BUCKET, cache="planned"
)

# By hand and under a plan in turn, so that neighbours in time are neighbours in the comparison.
WAYS = (
    EAGER,
    PLAN_EAGER,
    EAGER_FUSED,
    PLAN_EAGER_FUSED,
    COMPILED,
    PLAN_COMPILED,
    PLAN_BEST,
    PLAN_NO_SMALL_BUCKET,
    COMPILED_FUSED,
    PLAN_COMPILED_FUSED,
)

Quantity = Literal["speed", "memory", "first call", "own time"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit on `way` over `against`: at least for speed, at most for the rest."""

    quantity: Quantity
    way: Way
    against: Way
    limit: float


SAME = (
    (PLAN_EAGER, EAGER),
    (PLAN_EAGER_FUSED, EAGER_FUSED),
    (PLAN_COMPILED, COMPILED),
    (PLAN_COMPILED_FUSED, COMPILED_FUSED),
)
BEST_SPEED = {"gpt": 1.04, "mixer": 1.13}
SLACK_SECONDS = 2.0


def bars(model: str) -> tuple[Bar, ...]:
    """Every bar of one model."""
    best = BEST_SPEED.get(model)
    return (
        *(Bar("speed", way, against, 0.99) for way, against in SAME),
        *(() if best is None else (Bar("speed", PLAN_BEST, COMPILED, best),)),
        *(Bar("memory", way, against, 1.02) for way, against in SAME),
        Bar("memory", PLAN_BEST, COMPILED_FUSED, 1.02),
        Bar("first call", PLAN_EAGER, EAGER, 1.05),
        Bar("first call", PLAN_COMPILED, COMPILED, 1.05),
        Bar("first call", PLAN_BEST, COMPILED, 1.05),
        *(Bar("own time", way, way, 0.01) for way in WAYS if way.plan is not None),
    )
