"""Offsets between the clocks of ranks, over the process group's store.

Rank 0 keeps the time. Another rank asks it several times and takes the answer that came back
fastest: rank 0 read its clock somewhere between question and answer, so half of that round trip
bounds the error (Cristian, Probabilistic clock synchronization, 1989). Ranks have their turn in the
order in which they ask, so that one that never does holds up nobody. Each side uses a connection
of its own, because a wait on a shared one blocks whatever else the script says to the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

ROUNDS = 12
PATIENCE = timedelta(seconds=10)
"""How long a rank takes at most, and how long rank 0 waits for ranks that have not asked."""

BETWEEN = timedelta(seconds=1)
"""How long rank 0 waits for the next question of the rank whose turn it is."""

LOOK = 0.002
"""Seconds between two looks at who asks."""


class Store(Protocol):
    """What is asked of a store: the surface of `torch.distributed.Store` that is used here."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a rank's clock is behind rank 0's.

    Attributes:
        offset_ns: to be added to this rank's wall-clock nanoseconds.
        error_ns: the true offset lies at most so far from it.
    """

    offset_ns: int
    error_ns: int


def _key(topic: str, what: str, rank: int, number: int) -> str:
    return f"sgplan/clock/{topic}/{what}/{rank}/{number}"


def keep_time(
    store: Store,
    topic: str,
    ranks: Iterable[int],
    rounds: int = ROUNDS,
    now: Callable[[], int] = time.time_ns,
) -> set[int]:
    """On rank 0: answer all questions of a rank, and then of the next one that has asked.

    Returns:
        Ranks that did not ask, or not to the end.

    Raises:
        RuntimeError: the store is gone.
    """
    deadline = time.monotonic() + PATIENCE.total_seconds()
    silent = set(ranks)
    broken: set[int] = set()
    while silent and time.monotonic() < deadline:
        asking = [rank for rank in sorted(silent) if store.check([_key(topic, "ask", rank, 0)])]
        for rank in asking:
            silent.discard(rank)
            if not _answer(store, topic, rank, rounds, now):
                broken.add(rank)
        if not asking:
            time.sleep(LOOK)
    return silent | broken


def _answer(store: Store, topic: str, rank: int, rounds: int, now: Callable[[], int]) -> bool:
    """Answer a rank that has asked its first question; whether it asked them all."""
    for number in range(rounds):
        try:
            store.wait([_key(topic, "ask", rank, number)], BETWEEN)
        except RuntimeError:
            return False
        store.set(_key(topic, "time", rank, number), str(now()))
    return True


def ask_time(
    store: Store, topic: str, rank: int, rounds: int = ROUNDS, now: Callable[[], int] = time.time_ns
) -> Offset:
    """On another rank: the offset to rank 0, by the fastest of some round trips.

    Raises:
        RuntimeError: rank 0 has not answered all questions within `PATIENCE`, or the store is gone.
    """
    found: list[Offset] = []
    deadline = time.monotonic() + PATIENCE.total_seconds()
    for number in range(rounds):
        asked = now()
        store.set(_key(topic, "ask", rank, number), "")
        answer = _key(topic, "time", rank, number)
        store.wait([answer], timedelta(seconds=max(deadline - time.monotonic(), 1e-3)))
        told = int(store.get(answer))
        heard = now()
        found.append(Offset(told - (asked + heard) // 2, (heard - asked + 1) // 2))
    return min(found, key=lambda offset: offset.error_ns)
