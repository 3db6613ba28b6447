"""Who waits for whom: the ranks' program counters side by side.

Pure. A rank in `wait` waits for every rank that has not come to the same wait of the same step; a
rank for which others wait, and which waits for nobody, is the cause. Without counters, as in a
recorded run that is looked at in the past, nobody is said to wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sgplan.interpreter.counter import ELSEWHERE, Position
from sgplan.tui.state import RunState

WAIT = "wait "
PATIENT = 1.0
"""Seconds that a wait lasts before it is worth a word."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where one rank is.

    Attributes:
        doing: the instruction, or what it does outside of all of them.
        step: steps that it has ended; the counter knows more of them than events that are not
            written yet.
        since: seconds at it; None when not known.
        waits_for: ranks that it waits for.
        holds_up: ranks that wait for it while it waits for nobody.
        gone: whether its process is no more although its script has not ended.
    """

    rank: int
    doing: str
    step: int = 0
    since: float | None = None
    waits_for: tuple[int, ...] = ()
    holds_up: tuple[int, ...] = ()
    gone: bool = False


def whereabouts(
    state: RunState, positions: Mapping[int, Position], now_ns: int, dead: Collection[int] = ()
) -> dict[int, Where]:
    """Every rank of a run.

    Args:
        positions: by the program counters.
        now_ns: of this machine's clock, in which the counters of its ranks are.
        dead: ranks whose processes are gone.
    """
    found: dict[int, Where] = {}
    ranks = sorted(state.ranks.keys() | positions.keys())
    waiting = {rank: p for rank, p in positions.items() if _waits(state, rank, p, now_ns)}
    missing = {at: _missing(*at, positions, ranks) for at in {_at(p) for p in waiting.values()}}
    behind: dict[int, list[int]] = {rank: [] for rank in ranks}
    for rank, position in sorted(waiting.items()):
        for other in missing[_at(position)]:
            behind[other].append(rank)
    for rank in ranks:
        position = positions.get(rank)
        waits_for = missing[_at(waiting[rank])] if rank in waiting else ()
        holds_up = () if waits_for else tuple(behind[rank])
        doing, since = _doing(state, rank, position, now_ns)
        view = state.ranks.get(rank)
        gone = rank in dead and (view is None or view.ended is None)
        counted = 0 if position is None else position.step
        step = max(counted, 0 if view is None else view.step)
        found[rank] = Where(rank, doing, step, since, waits_for, holds_up, gone)
    return found


def _at(position: Position) -> tuple[int, str]:
    return position.step, position.place


def _waits(state: RunState, rank: int, position: Position, now_ns: int) -> bool:
    view = state.ranks.get(rank)
    if view is not None and view.ended is not None:
        return False
    return position.place.startswith(WAIT) and now_ns - position.since_ns > PATIENT * 1e9


def _missing(
    step: int, place: str, positions: Mapping[int, Position], ranks: Sequence[int]
) -> tuple[int, ...]:
    """Ranks that have not come to a place of a step, where others wait."""
    return tuple(
        rank
        for rank in ranks
        if (theirs := positions.get(rank)) is None
        or theirs.step < step
        or (theirs.step == step and theirs.place != place)
    )


def _doing(
    state: RunState, rank: int, position: Position | None, now_ns: int
) -> tuple[str, float | None]:
    view = state.ranks.get(rank)
    if view is not None and view.ended is not None:
        return view.ended.how, None
    if view is not None and view.compiling:
        return f"compile {view.compiling}", _seconds(now_ns, view.compiling_since)
    if position is None:
        return ("-" if view is None else view.phase), None
    if position.place != ELSEWHERE:
        return position.place, _seconds(now_ns, position.since_ns)
    return "script", _seconds(now_ns, position.since_ns)


def _seconds(now_ns: int, since_ns: int) -> float | None:
    return max(now_ns - since_ns, 0) / 1e9 if now_ns and since_ns else None
