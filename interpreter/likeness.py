"""Whether the ranks run the same graphs, sizes left out, and reduce the same way.

Data-parallel ranks may differ in both, because communication depends on the bucket list only. At
the end of some early steps each rank publishes what it has, and compares what all had at that step
when they have published it, without waiting; under `agree = strict` it waits, and a difference ends
the run, else it is a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sgplan.planner import torch_api

LOOKS = frozenset({1, 2, 4, 8, 16, 32})


class Likeness:
    """Compares one root with the other ranks' for the first steps.

    Args:
        store: shared by the ranks.
        root: its name.
        rank, world: of this process.
    """

    def __init__(self, store: torch_api.Store, root: str, rank: int, world: int) -> None:
        self._store = store
        self._root = root
        self._rank = rank
        self._ranks = range(world)
        self._pending: list[int] = []

    @property
    def pending(self) -> bool:
        """Whether other ranks have not published a step that this one has."""
        return bool(self._pending)

    def publish(self, step: int, path: str, digests: Sequence[str]) -> None:
        """At the steps that are looked at: say how this rank reduces and what it captured."""
        if step in LOOKS:
            self._store.set(self._key(step, self._rank), " ".join([path, *sorted(digests)]))
            self._pending.append(step)

    def difference(self) -> str:
        """How some rank differs from the first, in words; empty when none is known to."""
        while self._pending and self._store.check(self._keys(self._pending[0])):
            if found := self._compare(self._pending.pop(0)):
                return found
        return ""

    def strict(self, step: int, timeout: float) -> str:
        """The same for one step, after waiting for every rank."""
        self._store.wait(self._keys(step), timedelta(seconds=timeout))
        return self._compare(step)

    def _compare(self, step: int) -> str:
        texts = [self._store.get(key).decode().split(" ") for key in self._keys(step)]
        path, *graphs = texts[0]
        for rank, (other_path, *other_graphs) in enumerate(texts):
            if other_path != path:
                here, there = _words(path), _words(other_path)
                return f"`{self._root}` reduces by {here} on rank 0, by {there} on rank {rank}"
            if other_graphs != graphs:
                more = f"{len(graphs)} graphs on rank 0, {len(other_graphs)} on rank {rank}"
                same = len(set(graphs) & set(other_graphs))
                return (
                    f"graphs of `{self._root}` differ with sizes left out: {more}, {same} in common"
                )
        return ""

    def _keys(self, step: int) -> list[str]:
        return [self._key(step, rank) for rank in self._ranks]

    def _key(self, step: int, rank: int) -> str:
        return f"sgplan/likeness/{self._root}/{step}/{rank}"


def _words(path: str) -> str:
    return {"in_graph": "in-graph reductions", "hooks": "hooks"}.get(path, path)
