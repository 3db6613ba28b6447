"""Where ranks wait for one another before they end by themselves: on the store, for a bounded time.

Not by a collective: a rank that never comes must not hold the others, nor meet a collective of the
script.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import torch

from sgplan.interpreter import events

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank

# Seconds a rank that is done waits for the others.
MEETING = 60.0


class Meeting:
    """The end of one kind of run.

    Args:
        rank: whose end it is.
        word: names the meeting on the store, as in `planned`.
    """

    def __init__(self, rank: Rank, word: str) -> None:
        self._rank = rank
        self._word = word

    def arrive(self) -> None:
        """Say that this rank is done, and wait for the others."""
        store = self._rank.peers.store
        if store is None:
            return
        store.set(f"sgplan/{self._word}/{self._rank.rank}", "1")
        until = time.monotonic() + MEETING
        while self.arrived() < self._rank.world and time.monotonic() < until:
            time.sleep(0.05)

    def arrived(self) -> int:
        """How many ranks are done."""
        store = self._rank.peers.store
        if store is None:
            return 0
        keys = (f"sgplan/{self._word}/{rank}" for rank in range(self._rank.world))
        try:
            return sum(store.check([key]) for key in keys)
        except RuntimeError:
            return 0


def block_saves(rank: Rank, doing: str) -> Any:
    """Keep a run that only looks from writing over the script's checkpoints.

    Returns:
        `torch.save` as it was.
    """
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> None:
        rank.once(events.NoteAdded, "side effects", f"`torch.save` was blocked while {doing}")

    torch.save = save
    return original
