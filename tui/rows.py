"""What each screen says, as rows of a table: pure functions of a view.

The program and its graphs are in `listing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sgplan.interpreter.counter import Cost
from sgplan.planner.units import human_bytes, human_time
from sgplan.tui.cells import Cell, Column, Row, Rows, Tone
from sgplan.tui.source import End
from sgplan.tui.state import Entry, Miss, RankView, RunState
from sgplan.tui.waiting import Where

if TYPE_CHECKING:
    from sgplan.planner.artefact import Part


@dataclass(slots=True)
class View:
    """What is looked at.

    Attributes:
        state: the run at that moment.
        where: every rank's whereabouts.
        live: whether the newest moment is shown.
        end: how the run ended, None while it goes on.
        part: program and facts of the chosen rank, None before they were written, or when it is
            not them that is looked at.
        costs: measured seconds of the chosen rank's places, with `part`.
        rank: the chosen one.
        faults: what cannot be read.
        words: the filter of the log, in lower case; empty shows all.
        reading: not everything is taken in yet.
        now_ns: the time of that moment; of a run that goes on, the time of day.
    """

    state: RunState
    where: dict[int, Where] = field(default_factory=dict[int, Where])
    live: bool = True
    end: End | None = None
    part: Part | None = None
    costs: Sequence[Cost] = ()
    rank: int = 0
    faults: Sequence[str] = ()
    words: str = ""
    reading: bool = False
    now_ns: int = 0


# --- overview ------------------------------------------------------------------------------------

RANKS = (
    Column("rank", 4, right=True),
    Column("state", 10),
    Column("step", 6, right=True),
    Column("at", 22, rank=1, most=30),
    Column("since", 7, right=True, rank=3),
    Column("ms/step", 8, right=True, rank=2),
    Column("comm", 6, right=True, rank=5),
    Column("memory", 9, right=True, rank=6),
    Column("misses", 6, right=True, rank=7),
    Column("waits for", 14, rank=1),
)


def rank_rows(view: View) -> Sequence[Row]:
    """A row for each rank: what it does, since when, and who holds it up."""
    slow = view.state.stragglers
    over = view.end is not None
    ranks = [view.where[rank] for rank in sorted(view.where)]
    return Rows(ranks, lambda where: _rank_row(view.state, where, slow, over))


def _rank_row(state: RunState, where: Where, slow: Mapping[int, float], over: bool) -> Row:
    found = state.ranks.get(where.rank) or RankView(where.rank)
    step, exposed = found.last_seconds, found.exposed
    return (
        Cell(str(where.rank)),
        _sign(found, where, where.rank in slow, over),
        Cell(str(where.step)),
        Cell(where.doing),
        Cell(seconds(where.since)),
        Cell("-" if step is None else f"{1e3 * step:.1f}"),
        Cell("-" if exposed is None else f"{exposed:.0%}"),
        Cell(human_bytes(found.resident) if found.resident else "-"),
        Cell(str(found.misses) if found.misses else "-", "warn" if found.misses else "dim"),
        _for_whom(where, where.rank in slow),
    )


def _sign(found: RankView, where: Where, slow: bool, over: bool) -> Cell:
    """In one word and a sign; the colour says nothing that they do not."""
    if found.phase in ("failed", "refused"):
        return Cell(f"✗ {found.phase}", "bad")
    if where.holds_up:
        return Cell("✗ gone" if where.gone and not over else "▲ cause", "bad")
    if where.waits_for or where.unsure:
        return Cell("… waits", "warn")
    if where.gone:
        return Cell("✗ no end" if over else "✗ gone", "bad")
    if slow and found.phase in ("training", "ended"):
        return Cell("▲ slow", "warn")
    signs: dict[str, tuple[str, Tone]] = {
        "compiling": ("◐ compiles", ""),
        "training": ("● trains", "good"),
        "ended": ("■ ended", "dim"),
    }
    text, tone = signs.get(found.phase, ("○ starts", "dim"))
    return Cell(text, tone)


def _for_whom(where: Where, slow: bool) -> Cell:
    if where.waits_for:
        return Cell(f"rank {spans(where.waits_for)}", "warn")
    if where.unsure:
        return Cell(f"unknown, maybe rank {spans(where.unsure)}", "warn")
    if where.holds_up:
        return Cell(f"holds up rank {spans(where.holds_up)}", "bad")
    return Cell("the others wait for it", "warn") if slow else Cell("")


def spans(numbers: Sequence[int]) -> str:
    """`0..2, 5`: ascending numbers in short."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in parts)


def seconds(value: float | None) -> str:
    """`0.4 s`, `12 s`, `3:05`."""
    if value is None:
        return ""
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 120 else f"{value // 60:.0f}:{value % 60:02.0f} m"


# --- program and graph, whose rows are in `listing.py` -------------------------------------------

PROGRAM = (
    Column("instruction", 34, most=60),
    Column("mean", 9, right=True, rank=1),
    Column("times", 6, right=True, rank=4),
    Column("FLOPs", 10, right=True, rank=3),
    Column("moved", 10, right=True, rank=3),
    Column("plan", 22, rank=2),
)
GRAPH = (
    Column("what", 26),
    Column("where, or the rule for it", 26, rank=1),
    Column("size", 12, right=True, rank=2),
    Column("what it does", 30, rank=3),
)


# --- guards --------------------------------------------------------------------------------------

GUARDS = (
    Column("step", 5, right=True),
    Column("rank", 4, right=True, rank=3),
    Column("guard", 14, rank=4),
    Column("what", 26, most=44),
    Column("cost", 9, right=True, rank=1),
    Column("did", 12, rank=2),
    Column("where", 14, rank=5),
    Column("to declare it, or why", 40, rank=2),
)


def guard_rows(view: View) -> Sequence[Row]:
    """Guard misses, the newest first."""
    return Rows(list(reversed(view.state.misses)), _guard_row)


def _guard_row(miss: Miss) -> Row:
    event = miss.event
    return (
        Cell(str(miss.step)),
        Cell(str(miss.rank)),
        Cell(event.guard or "no guard", "" if event.guard else "warn"),
        Cell(f"{event.path} {event.old} -> {event.new}"),
        Cell(human_time(event.seconds) if event.seconds else "-"),
        Cell(event.did, "bad" if event.did == "stopped" else ""),
        Cell(event.where),
        Cell(event.line or event.why),
    )


# --- precision -----------------------------------------------------------------------------------

PRECISION = (
    Column("root", 12),
    Column("from step", 9, right=True),
    Column("computes in", 30, most=60),
    Column("scale", 10, right=True, rank=1),
    Column("skipped", 8, right=True, rank=1),
)


def precision_rows(view: View) -> list[Row]:
    """Stages that were entered, the running one first."""
    skipped = max((found.skipped for found in view.state.ranks.values()), default=0)
    newest = {stage.root: stage for stage in view.state.stages}
    rows: list[Row] = []
    for stage in reversed(view.state.stages):
        now = newest[stage.root] is stage
        scale = view.state.scales.get(stage.root)
        rows.append(
            (
                Cell(f"{'▶ ' if now else '  '}{stage.root}"),
                Cell(str(stage.step)),
                Cell(stage.formats),
                Cell("-" if scale is None or not now else f"{scale:g}"),
                Cell(str(skipped) if now else "", "warn" if skipped and now else ""),
            )
        )
    return rows


# --- events --------------------------------------------------------------------------------------

EVENTS = (
    Column("time", 8, right=True, rank=1),
    Column("step", 5, right=True, rank=3),
    Column("ranks", 8, rank=2),
    Column("kind", 9),
    Column("what", 60),
)
_TONES: dict[str, Tone] = {
    "error": "bad",
    "warning": "warn",
    "miss": "warn",
    "slo": "warn",
    "info": "dim",
}


def event_rows(view: View) -> Sequence[Row]:
    """The log, the newest first, equal lines that several ranks said after each other as one."""
    began = view.state.began_ns
    return Rows(folded(view.state.log, view.words), lambda said: _event_row(*said, began))


def _event_row(entry: Entry, ranks: Sequence[int], began: int) -> Row:
    who = "run" if ranks == [-1] else f"x{len(ranks)}" if len(ranks) > 1 else str(ranks[0])
    return (
        Cell(f"{(entry.time_ns - began) / 1e9:.1f}"),
        Cell(str(entry.step)),
        Cell(who),
        Cell(entry.kind, _TONES.get(entry.kind, "")),
        Cell(f"{entry.subject}: {entry.text}" if entry.subject else entry.text),
    )


def folded(log: Sequence[Entry], words: str) -> list[tuple[Entry, list[int]]]:
    """Entries that fit the filter, the newest first, each with the ranks that said the same."""
    by_text: dict[tuple[str, str, str, int, int], tuple[Entry, list[int]]] = {}
    for entry in sorted(log, key=lambda entry: entry.time_ns, reverse=True):
        if words and words not in f"{entry.kind} {entry.subject} {entry.text}".lower():
            continue
        key = (entry.kind, entry.subject, entry.text, entry.step, entry.attempt)
        known = by_text.get(key)
        if known is None:
            by_text[key] = (entry, [entry.rank])
        elif entry.rank not in known[1]:
            known[1].append(entry.rank)
    return list(by_text.values())
