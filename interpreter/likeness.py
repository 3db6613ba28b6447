"""Whether the ranks run the same graphs, sizes left out, and reduce the same way: a note, or an error.

Data-parallel ranks may differ in both, because communication depends on the bucket list only. Each
rank publishes what it has when its first steps end and compares without waiting; under
`agree = strict` it waits, and a difference ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist


LOOKS = 32


class Likeness:
    """Compares one root with the other ranks' for the first steps.

    Args:
        store: shared by the ranks.
        root: its name.
        rank, world: of this process.
    """

    def __init__(self, store: dist.Store, root: str, rank: int, world: int) -> None:
        self._store = store
        self._root = root
        self._rank = rank
        self._ranks = range(world)
        self._published = ""
        self._looks = LOOKS

    def publish(self, path: str, digests: Sequence[str]) -> None:
        """Say how this rank reduces and what it captured; again when that changes."""
        text = " ".join([path, *sorted(digests)])
        if text != self._published:
            self._published = text
            self._store.set(self._key(self._rank), text)
            self._looks = LOOKS

    def difference(self) -> str:
        """How some rank differs from the first, in words; empty while nothing is known."""
        if self._looks == 0:
            return ""
        self._looks -= 1
        if not self._store.check([self._key(rank) for rank in self._ranks]):
            return ""
        return self._compare()

    def strict(self, timeout: float) -> str:
        """The same, after waiting for every rank."""
        self._store.wait([self._key(rank) for rank in self._ranks], timedelta(seconds=timeout))
        return self._compare()

    def _compare(self) -> str:
        texts = [self._store.get(self._key(rank)).decode().split(" ") for rank in self._ranks]
        path, *graphs = texts[0]
        for rank, (other_path, *other_graphs) in enumerate(texts):
            if other_path != path:
                return f"`{self._root}` reduces by {_words(path)} on rank 0, by {_words(other_path)} on rank {rank}"
            if other_graphs != graphs:
                more = f"{len(graphs)} graphs on rank 0, {len(other_graphs)} on rank {rank}"
                same = len(set(graphs) & set(other_graphs))
                return f"graphs of `{self._root}` differ with sizes left out: {more}, {same} in common"
        return ""

    def _key(self, rank: int) -> str:
        return f"sgplan/likeness/{self._root}/{rank}"


def _words(path: str) -> str:
    return {"in_graph": "in-graph reductions", "hooks": "hooks"}.get(path, path)


