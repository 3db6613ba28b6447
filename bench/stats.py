"""Medians and their intervals. Numbers in, numbers out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import TypeVar

Rounds = Sequence[Sequence[float]]
"""Step seconds of one start of a job, by round."""
T = TypeVar("T")
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


def flat(starts: Sequence[Rounds]) -> list[float]:
    return [seconds for rounds in starts for steps in rounds for seconds in steps]


def speed_ratio(way: Sequence[Rounds], against: Sequence[Rounds], seed: int = 0) -> Interval:
    """How many times faster `way` is: step seconds of `against` over those of `way`.

    Of one start, the median over rounds of the ratio of a round's medians: the same rounds of both
    ways are compared because they ran next to each other, so that a drift of the machine hits both
    alike. Of several, the geometric mean over starts. The interval is that of a bootstrap over
    starts, and over rounds within each (Davison and Hinkley 1997, section 3.8).
    """
    pairs = zip(way, against, strict=True)
    ratios = [
        [median(b) / median(a) for a, b in zip(own, other, strict=True)] for own, other in pairs
    ]
    rng = random.Random(seed)

    def resample() -> float:
        return geometric_mean(median(_drawn(rng, rounds)) for rounds in _drawn(rng, ratios))

    return _interval(geometric_mean(median(rounds) for rounds in ratios), resample)


def ratio_of_medians(values: Sequence[float], against: Sequence[float], seed: int = 0) -> Interval:
    """The ratio of the medians of two independent samples, and its interval by the bootstrap."""
    rng = random.Random(seed)

    def resample() -> float:
        return median(_drawn(rng, values)) / median(_drawn(rng, against))

    return _interval(median(values) / median(against), resample)


def median_of(values: Sequence[float], seed: int = 0) -> Interval:
    """The median of independent values, and its interval by the bootstrap."""
    rng = random.Random(seed)
    return _interval(median(values), lambda: median(_drawn(rng, values)))


def _drawn(rng: random.Random, values: Sequence[T]) -> list[T]:
    """As many of them as there are, with replacement."""
    return rng.choices(values, k=len(values))


def _interval(value: float, resample: Callable[[], float]) -> Interval:
    found = sorted(resample() for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - COVERAGE) / 2)
    return Interval(value, found[cut], found[-1 - cut])
