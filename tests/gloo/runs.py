"""Reads what a job left behind: events of a run folder, ends of output files. Starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sgplan.interpreter.record import read_events


def ranks_in(run: Path) -> list[int]:
    """Ranks that wrote events, ascending."""
    return sorted(int(p.stem.removeprefix("events-")) for p in run.glob("events-*.msgpack"))


def rank_events(run: Path, rank: int) -> list[tuple[int, Any]]:
    """`(time_ns, event)` of one rank, in order, headers left out."""
    return [(r.time_ns, r.event) for r in read_events(run / f"events-{rank}.msgpack")]


def last_lines(path: Path, count: int) -> str:
    """The end of a text file, `nothing` when there is none."""
    if not path.exists():
        return "nothing"
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:]) or "nothing"
