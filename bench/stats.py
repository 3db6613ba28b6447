"""Medians and their intervals. Numbers in, numbers out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

Rounds = Sequence[Sequence[float]]
RESAMPLES = 2000
COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and the range that holds it in `COVERAGE` of the resamples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def flat(rounds: Rounds) -> list[float]:
    return [seconds for steps in rounds for seconds in steps]


def speed_ratio(way: Rounds, against: Rounds) -> Interval:
    """How many times faster `way` is: step seconds of `against` over those of `way`.

    The median over rounds of the ratio of a round's medians. The same rounds of both ways are
    compared because they ran next to each other: a drift of the machine hits both alike.
    """
    return median_of([median(b) / median(a) for a, b in zip(way, against, strict=True)])


def median_of(values: Sequence[float], seed: int = 0) -> Interval:
    """The median of independent values, and its interval by the bootstrap."""
    rng = random.Random(seed)
    found = sorted(median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - COVERAGE) / 2)
    return Interval(median(values), found[cut], found[-1 - cut])
