"""Follows the event files of a run folder and keeps its `Summary` up to date.

Knows which files a run has and when they are damaged; the meaning of events is `summary.py`.
"""

from __future__ import annotations

from pathlib import Path

from sgplan.grammar.diagnostics import Diagnostic, Refused
from sgplan.interpreter.record import Tail
from sgplan.summary import Summary

_PREFIX = "events-"


class Observer:
    """Reads a run folder, once or again and again."""

    def __init__(self, folder: Path) -> None:
        self.summary = Summary()
        self.refusals: list[Diagnostic] = []
        self._folder = folder
        self._tails: dict[int, Tail] = {}

    def poll(self) -> int:
        """Take in what was written since the last call; returns the number of events."""
        for path in self._folder.glob(f"{_PREFIX}*.msgpack"):
            rank = path.stem.removeprefix(_PREFIX)
            if rank.isdigit() and int(rank) not in self._tails:
                self._tails[int(rank)] = Tail(path)
        return sum(self._read(rank, tail) for rank, tail in sorted(self._tails.items()))

    def finish(self) -> None:
        """Read to the end of every file; afterwards nobody writes."""
        while self.poll():
            pass

    def verdicts(self) -> list[Diagnostic]:
        """What is wrong with the files, asked after `finish`."""
        found = [tail.verdict() for _, tail in sorted(self._tails.items())]
        return self.refusals + [verdict for verdict in found if verdict is not None]

    def _read(self, rank: int, tail: Tail) -> int:
        try:
            records = tail.read()
        except Refused as refused:
            tail.damage = refused.diagnostics[0].message
            self.refusals.extend(refused.diagnostics)
            return 0
        for record in records:
            self.summary.take(rank, record.event)
        return len(records)
