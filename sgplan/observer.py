"""Follows the events of a run and keeps its `Summary` up to date; their meaning is `summary.py`."""

from __future__ import annotations

from pathlib import Path

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.reader import Reader
from sgplan.slo import SloWatch
from sgplan.summary import Summary


class Observer:
    """Reads a run folder, once or again and again.

    Args:
        watch: judges the service levels of a run that goes on.
    """

    def __init__(self, folder: Path, watch: SloWatch | None = None) -> None:
        self.summary = Summary()
        self._reader = Reader(folder)
        self._watch = watch

    def poll(self) -> None:
        """Take in what was written since the last call."""
        for heard in self._reader.records():
            self.summary.take(heard.rank, heard.record.event)
            if self._watch is not None:
                self._watch.take(heard)

    def finish(self) -> None:
        """Read to the end of every file; afterwards nobody writes."""
        self.poll()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
            self.poll()

    def verdicts(self) -> list[Diagnostic]:
        """What is wrong with the files, asked after `finish`."""
        return self._reader.verdicts()
