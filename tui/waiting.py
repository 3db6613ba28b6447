"""Who waits for whom: the ranks' program counters side by side.

Pure. A rank in `wait` waits for every rank of its process group that has not come to the same wait
of the same step; a rank for which others wait, and which waits for nobody, is the cause. Nobody is
blamed who cannot be seen, or who may not take part. Without counters, as in a recorded run that is
looked at in the past, nobody is said to wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

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
        unsure: ranks that it may wait for: nobody knows where they are, or which of the rank's
            process groups waits.
        holds_up: ranks that wait for it while it waits for nobody.
        gone: whether its process is no more although its script has not ended.
    """

    rank: int
    doing: str
    step: int = 0
    since: float | None = None
    waits_for: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()
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
    ranks = tuple(sorted(state.ranks.keys() | positions.keys()))
    positions = {rank: p for rank, p in positions.items() if not _is_stale(state, rank, p)}
    waiting = {rank: p for rank, p in positions.items() if _waits(state, rank, p, now_ns)}
    known: dict[tuple[int, str, _Groups], _Lacking] = {}  # hundreds of ranks share a few of them
    lacking: dict[int, _Lacking] = {}
    behind: dict[int, list[int]] = {rank: [] for rank in ranks}
    for rank, position in sorted(waiting.items()):
        groups = _groups(state, rank)
        key = (position.step, position.place, groups)
        if key not in known:
            known[key] = _lacking(state, positions, position, _shared(groups, ranks))
        lacking[rank] = known[key]
        for other in lacking[rank].surely:
            behind[other].append(rank)
    for rank in ranks:
        position = positions.get(rank)
        waits_for, unsure = lacking.get(rank, _Lacking())
        holds_up = () if waits_for or unsure else tuple(behind[rank])
        doing, since = _doing(state, rank, position, now_ns)
        view = state.ranks.get(rank)
        gone = rank in dead and (view is None or view.ended is None)
        counted = 0 if position is None else position.step
        step = max(counted, 0 if view is None else view.step)
        found[rank] = Where(rank, doing, step, since, waits_for, unsure, holds_up, gone)
    return found


def _waits(state: RunState, rank: int, position: Position, now_ns: int) -> bool:
    view = state.ranks.get(rank)
    if view is not None and view.ended is not None:
        return False
    return position.place.startswith(WAIT) and now_ns - position.since_ns > PATIENT * 1e9


def _is_stale(state: RunState, rank: int, position: Position) -> bool:
    """Whether the events know of more steps: the file of another host is not seen as it is."""
    view = state.ranks.get(rank)
    return view is not None and view.step > position.step


_Groups = frozenset[tuple[int, ...]]
"""Process groups in which a rank reduces, by their ranks; an empty one is that of all."""


class _Shared(NamedTuple):
    """Ranks that are in every group of a rank, and those that are in any."""

    every: tuple[int, ...]
    some: tuple[int, ...]


class _Lacking(NamedTuple):
    """Ranks that have not come to where another one waits."""

    surely: tuple[int, ...] = ()
    maybe: tuple[int, ...] = ()


def _groups(state: RunState, rank: int) -> _Groups:
    view = state.ranks.get(rank)
    return frozenset(() if view is None else view.groups.values())


def _shared(groups: _Groups, ranks: tuple[int, ...]) -> _Shared:
    sets = [set(each or ranks) for each in groups] or [set(ranks)]
    every, some = set.intersection(*sets), set.union(*sets)
    return _Shared(*(tuple(n for n in ranks if n in each) for each in (every, some)))


def _lacking(
    state: RunState, positions: Mapping[int, Position], waiting: Position, shared: _Shared
) -> _Lacking:
    step, place = waiting.step, waiting.place
    every = set(shared.every)
    surely: list[int] = []
    maybe: list[int] = []
    for rank in shared.some:
        theirs, view = positions.get(rank), state.ranks.get(rank)
        if theirs is None:
            has_ended = view is not None and view.ended is not None
            (surely if has_ended else maybe).append(rank)
        elif theirs.step < step or (theirs.step == step and theirs.place != place):
            (surely if rank in every else maybe).append(rank)
    return _Lacking(tuple(surely), tuple(maybe))


def _doing(
    state: RunState, rank: int, position: Position | None, now_ns: int
) -> tuple[str, float | None]:
    view = state.ranks.get(rank)
    if view is not None and view.ended is not None:
        return view.ended.words, None
    if view is not None and view.compiling:
        return f"compile {view.compiling}", _seconds(now_ns, view.compiling_since)
    if position is None:
        return ("-" if view is None else view.phase), None
    if position.place != ELSEWHERE:
        return position.place, _seconds(now_ns, position.since_ns)
    return "script", _seconds(now_ns, position.since_ns)


def _seconds(now_ns: int, since_ns: int) -> float | None:
    return max(now_ns - since_ns, 0) / 1e9 if now_ns and since_ns else None
