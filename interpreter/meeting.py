"""Where ranks wait for one another before they end by themselves: on the store, for a bounded time.

Not by a collective: a rank that never comes must not hold the others, nor meet a collective of the
script.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from sgplan.interpreter import events
from sgplan.planner.torch_api import Store

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank

# How long a rank that is done waits for the others.
MEETING = timedelta(seconds=60)


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
        if store is not None:
            keys = [self._key(rank) for rank in range(self._rank.world)]
            meet(store, self._key(self._rank.rank), keys, MEETING)

    def arrived(self) -> int:
        """How many ranks are done; all of them when the rank that held the store is gone."""
        store = self._rank.peers.store
        if store is None:
            return 0
        try:
            return sum(store.check([self._key(rank)]) for rank in range(self._rank.world))
        except RuntimeError:
            return self._rank.world

    def _key(self, rank: int) -> str:
        return f"sgplan/{self._word}/{rank}"


def meet(store: Store, own: str, keys: Sequence[str], patience: timedelta) -> None:
    """Set a key and wait for those of the others, as long as the store lives.

    The store may live in one of the ranks: when that one has left, nobody is waited for.
    """
    try:
        store.set(own, "1")
        store.wait(list(keys), patience)
    except RuntimeError:
        return


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
