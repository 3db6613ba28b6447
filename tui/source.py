"""What a run folder holds beside its events: program counters, programs, the report.

The folder is the truth. It may grow while it is read, hold half-written or damaged files, or be
that of a run that has long ended; what can be read is given, what cannot is named. Never writes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgplan.failure import Failure
from sgplan.grammar.diagnostics import Refused
from sgplan.interpreter.birth import Birth, lives
from sgplan.interpreter.counter import Cost, CounterFile, Position
from sgplan.report import began
from sgplan.runfolder import RunFolder

if TYPE_CHECKING:
    from sgplan.planner.artefact import Part


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended: by its report, or because none of its processes is left.

    Attributes:
        time_ns: when, to a second; 0 without a report.
        why: what went wrong, empty when nothing did.
    """

    time_ns: int = 0
    why: str = ""


class Source:
    """One run folder.

    Attributes:
        folder: of the run.
        faults: what cannot be read, each once.
    """

    def __init__(self, folder: RunFolder, alive: Callable[[int, Birth], bool] = lives) -> None:
        self.folder = folder
        self.faults: list[str] = []
        self._alive = alive
        self._here = socket.gethostname()
        self._counters: dict[int, tuple[int, CounterFile]] = {}  # inode, file
        self._parts: dict[int, tuple[float, Part]] = {}
        self._end: End | None = None

    # --- program counters ------------------------------------------------------------------------

    def positions(self) -> dict[int, Position]:
        """Where every rank is, by its program counter; a rank that has none is left out."""
        self._open_counters()
        found: dict[int, Position] = {}
        for rank, (_, counter) in sorted(self._counters.items()):
            position = counter.position()
            if position is not None:
                found[rank] = position
        return found

    def costs(self, rank: int) -> list[Cost]:
        """Seconds in every place of a rank's program, at the last `positions`."""
        known = self._counters.get(rank)
        return [] if known is None else known[1].costs()

    def _open_counters(self) -> None:
        """A rank that was restarted has a file of the same name and its own."""
        if not self.folder.path.exists():
            self._fault("the run folder was deleted")
        for rank, entry in _listed(self.folder.path):
            known = self._counters.get(rank)
            if known is None or known[0] != entry.inode():
                try:
                    self._counters[rank] = (entry.inode(), CounterFile(entry.path))
                except (OSError, ValueError) as error:
                    self._fault(str(error))

    # --- programs --------------------------------------------------------------------------------

    def part(self, rank: int) -> Part | None:
        """The program of a rank and its facts, read again when they were written again."""
        from sgplan.planner.artefact import read_part  # loaded when a program is looked at

        path = self.folder.path / f"program-{rank}.msgpack"
        try:
            changed = path.stat().st_mtime
            known = self._parts.get(rank)
            if known is None or known[0] != changed:
                known = self._parts[rank] = (changed, read_part(path))
        except FileNotFoundError:
            return None
        except (Refused, Failure, OSError) as error:
            self._fault(f"{path.name}: {error}")
            return None
        return known[1]

    # --- the end ---------------------------------------------------------------------------------

    def end(self, positions: Mapping[int, Position]) -> End | None:
        """How the run ended; None while it goes on, as far as this machine can tell."""
        if self._end is None:
            self._end = self._reported()
        if self._end is None and positions and all(map(self._is_dead, positions.values())):
            return End()
        return self._end

    def _reported(self) -> End | None:
        try:
            report = self.folder.read_report()
        except Failure as failure:
            self._fault(str(failure))
            return End()
        return None if report is None else _end_of(report)

    def dead(self, positions: Mapping[int, Position]) -> set[int]:
        """Ranks of this machine whose process is no more."""
        return {rank for rank, position in positions.items() if self._is_dead(position)}

    def _is_dead(self, position: Position) -> bool:
        """Whether a process is gone; of one on another machine nothing is known."""
        return position.host == self._here and not self._alive(position.pid, position.born)

    def close(self) -> None:
        """Let go of the files."""
        for _, counter in self._counters.values():
            counter.close()
        self._counters.clear()

    def _fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)


def _listed(folder: Path) -> Iterator[tuple[int, os.DirEntry[str]]]:
    """Program counters by rank, with inodes: the folder knows them, no file is looked at."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                rank = entry.name.removeprefix("counter-").removesuffix(".bin")
                if rank.isdigit() and entry.name == f"counter-{rank}.bin":
                    yield int(rank), entry
    except OSError:
        return  # gone while it was looked at


def _end_of(report: dict[str, Any]) -> End:
    """A report of another version may say less."""
    try:
        time_ns = round(1e9 * (began(report) + report["seconds"]))
    except (KeyError, TypeError, ValueError):
        time_ns = 0
    return End(time_ns, str(report.get("why") or ""))
