"""Offsets between the clocks of ranks, over the process group's store.

Rank 0 keeps the time. Another rank asks it several times and takes the answer that came back
fastest: rank 0 read its clock somewhere between question and answer, so half of that round trip
bounds the error (Cristian, Probabilistic clock synchronization, 1989). Each side uses a connection
of its own, because a wait on a shared one blocks whatever else the script says to the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

ROUNDS = 12
PATIENCE = timedelta(seconds=10)


class Store(Protocol):
    """What is asked of a store: the surface of `torch.distributed.Store` that is used here."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

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
    store: Store, topic: str, rank: int, rounds: int = ROUNDS, now: Callable[[], int] = time.time_ns
) -> None:
    """On rank 0: answer the questions of one rank.

    Raises:
        RuntimeError: the rank did not ask within `PATIENCE`, or the store is gone.
    """
    for number in range(rounds):
        store.wait([_key(topic, "ask", rank, number)], PATIENCE)
        store.set(_key(topic, "time", rank, number), str(now()))


def ask_time(
    store: Store, topic: str, rank: int, rounds: int = ROUNDS, now: Callable[[], int] = time.time_ns
) -> Offset:
    """On another rank: the offset to rank 0, by the fastest of some round trips.

    Raises:
        RuntimeError: rank 0 did not answer within `PATIENCE`, or the store is gone.
    """
    found: list[Offset] = []
    for number in range(rounds):
        asked = now()
        store.set(_key(topic, "ask", rank, number), "")
        answer = _key(topic, "time", rank, number)
        store.wait([answer], PATIENCE)
        told = int(store.get(answer))
        heard = now()
        found.append(Offset(told - (asked + heard) // 2, (heard - asked + 1) // 2))
    return min(found, key=lambda offset: offset.error_ns)
