"""The agreement of ranks on the communication contract, through the store, never by a collective.

Every rank publishes its contract when it enters DDP and reads the others' before stock DDP compares
shapes; ranks enter DDP together in any case, so nobody waits longer than the script already does.
All ranks find the same difference, because all compare with the first one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.interpreter.meeting import meet
from sgplan.planner import torch_api

PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Agreement:
    """One root's contract among the ranks of a group.

    Attributes:
        store: shared by the ranks.
        topic: the same text on every rank for the same root.
        rank: of this process.
        ranks: all members, ascending.
        timeout: seconds to wait for the last member.
    """

    store: torch_api.Store
    topic: str
    rank: int
    ranks: Sequence[int]
    timeout: float

    def key(self, kind: str, rank: int) -> str:
        return f"sgplan/{self.topic}/{kind}/{rank}"

    def publish(self, digest: str, lines: Sequence[str]) -> None:
        """Say what this rank has; the text first, so that it is there when the digest is."""
        self.store.set(self.key("text", self.rank), "\n".join(lines))
        self.store.set(self.key("digest", self.rank), digest)

    def differing(self, waiting: Callable[[list[int]], None]) -> int | None:
        """Wait for all members; the lowest rank that differs from the first one, or None.

        Args:
            waiting: told every few seconds which ranks have not come yet.

        Raises:
            TimeoutError: some rank did not come.
        """
        until = time.monotonic() + self.timeout
        keys = [self.key("digest", rank) for rank in self.ranks]
        while True:
            try:
                self.store.wait(keys, PATIENCE)
                break
            except RuntimeError:
                absent = [
                    r
                    for r, key in zip(self.ranks, keys, strict=True)
                    if not self.store.check([key])
                ]
                if time.monotonic() > until:
                    raise TimeoutError(f"ranks {absent} did not enter DDP") from None
                if absent:
                    waiting(absent)
        digests = [self.store.get(key) for key in keys]
        return next((r for r, d in zip(self.ranks, digests, strict=True) if d != digests[0]), None)

    def text(self, rank: int) -> list[str]:
        """What a rank published."""
        return self.store.get(self.key("text", rank)).decode().split("\n")

    def leave(self) -> None:
        """Wait a little until all have read the verdict: the store may live in one of the ranks."""
        keys = [self.key("read", rank) for rank in self.ranks]
        meet(self.store, self.key("read", self.rank), keys, PATIENCE)


def disagreement(topic: str, first: int, other: int, difference: str) -> Diagnostic:
    """SG1003: two ranks would communicate differently."""
    return Diagnostic(
        code="SG1003",
        message=f"ranks {first} and {other} disagree on the contract of `{topic}`",
        notes=(f"the first difference, rank {first} first: {difference}",),
        help="start every rank with the same script, model and plan",
    )
