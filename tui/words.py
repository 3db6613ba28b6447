"""The lines around the tables: head, tabs, time slider, keys. Pure: text out, fitted to a width."""

from __future__ import annotations

from collections.abc import Sequence

from sgplan.planner.units import human_rate, human_share
from sgplan.tui.cells import clipped
from sgplan.tui.player import Player
from sgplan.tui.rows import View, seconds, spans
from sgplan.tui.state import NOTABLE
from sgplan.tui.waiting import Where

_LIVE = "1-6 screens  ↑↓ rank  ←→ step  n/p mark  space hold  / filter  r runs  ? help  q quit"
_PAST = "past  ←→ step  n/p mark  space play  f follow  ? help  q quit"
STUCK = 10.0
"""Seconds without an end of a step before that is worth a word."""

SLOW_STEPS = 10.0
"""As many steps of the usual length."""

PLACES = 3
"""Places of ranks that are named."""

_LEFT, _RIGHT = 9, 16  # cells beside the slider's bar


def head(view: View, name: str, width: int) -> str:
    """Two lines: which run it is and how it is, and its figures."""
    state = view.state
    verdict = _verdict(view)
    loss = "-" if state.loss is None else f"{state.loss:.4g}"
    figures = [
        f"step {_step(view)}",
        f"loss {loss}",
        f"{human_rate(state.samples_per_second)} samples/s",
        f"comm {human_share(state.wait_share)} exposed",
        f"{seconds((state.now_ns - state.began_ns) / 1e9 if state.began_ns else None)}",
    ]
    worst = max((v.error_ns for v in state.ranks.values() if v.error_ns is not None), default=None)
    if view.reading:
        figures.insert(0, "still reading")
    if worst is not None:
        figures.append(f"clocks within {worst / 1e3:.0f} us")
    world = f"{len(state.ranks)} of {state.world} ranks" if state.world else "no rank yet"
    first = clipped(f"{verdict}   {world}   {name}", width).rstrip()
    return f"{first}\n{clipped('  '.join(figures), width).rstrip()}"


def _step(view: View) -> int:
    """Steps that every rank has finished; a stopped one writes no events, its counter stays."""
    known = view.state.ranks
    finished = [w.step for w in view.where.values() if w.rank in known and known[w.rank].trains]
    return min(finished, default=view.state.step)


def _verdict(view: View) -> str:
    """Whether the run is healthy, in a sign and a few words."""
    state = view.state
    gone = [w.rank for w in view.where.values() if w.gone]
    causes = [w.rank for w in view.where.values() if w.holds_up]
    broken = [level for level in state.levels.values() if not level.holds]
    over = view.end is not None and view.live
    if view.faults:
        return f"✗ {view.faults[0]}"
    if state.phase in ("failed", "refused"):
        return f"✗ {state.phase}: {_reason(view)}"
    if gone and not over:
        return f"✗ rank {spans(gone)} is gone"
    if causes:
        waits = [w.since for w in view.where.values() if w.waits_for and w.since is not None]
        verb = "held up the others at the end," if over else "holds up the others for"
        return f"▲ rank {spans(causes)} {verb} {seconds(max(waits, default=0.0))}"
    if over and view.end is not None and view.end.why:
        return f"✗ {view.end.why}"
    if over and gone:
        return f"✗ killed: rank {spans(gone)} told no end"
    unsure = [w for w in view.where.values() if w.unsure and not w.waits_for]
    if unsure and not over:
        longest = seconds(max(w.since or 0.0 for w in unsure))
        return f"▲ rank {spans([w.rank for w in unsure])} waits for {longest}, who for is not known"
    if (stuck := _stuck(view)) is not None:
        return stuck
    if slow := state.stragglers:
        cost = max(slow.values())
        return f"▲ rank {spans(sorted(slow))} is slow: the others wait {cost:.0%} of each step"
    if state.misses and (cost := state.miss_share) > NOTABLE:
        event = state.misses[-1].event
        return f"▲ guard misses cost {cost:.0%} of the run: {event.path} {event.old} -> {event.new}"
    if broken:
        return f"! {broken[0].name} does not hold since step {broken[0].since_step}"
    if over:
        return "■ ended"
    words = {"compiling": "◐ compiling", "training": "● training", "ended": "■ ended"}
    return words.get(state.phase, "○ starting")


def _stuck(view: View) -> str | None:
    """What a run that trains says when it ends no step, and nobody is known to hold it up.

    A collective of the script's own, one inside a forward and a loader without end are no `wait`;
    so is an evaluation, in which ranks move on.
    """
    state = view.state
    known = view.live and not view.reading and view.end is None
    if not known or state.phase != "training":
        return None
    running = [rank for rank in state.ranks.values() if rank.ended is None]
    seconds_since = (view.now_ns - max((rank.step_ns for rank in running), default=0)) / 1e9
    most = max(STUCK, SLOW_STEPS * (state.usual_seconds or 0.0))
    if seconds_since <= most:
        return None
    ranks = sorted(rank.rank for rank in running)
    here = [view.where[rank] for rank in ranks if rank in view.where]
    stand = all(where.since is not None and where.since > most for where in here)
    return (
        f"{'▲' if stand else '…'} no step has ended for {seconds(seconds_since)}: {_places(here)}"
    )


def _places(here: Sequence[Where]) -> str:
    """`rank 0..2 in forward model, rank 3 in script`; where most are comes first."""
    ranks: dict[str, list[int]] = {}
    for where in here:
        ranks.setdefault(where.doing, []).append(where.rank)
    ordered = sorted(ranks.items(), key=lambda found: (-len(found[1]), found[1]))
    parts = [f"rank {spans(found)} in {place}" for place, found in ordered[:PLACES]]
    return ", ".join(parts + ["…"] * (len(ordered) > PLACES))


def _reason(view: View) -> str:
    """The first error of a script: what others say later follows from it."""
    errors = [entry for entry in view.state.log if entry.kind == "error"]
    first = next((e for e in errors if e.subject == "script"), errors[0] if errors else None)
    return "" if first is None else f"rank {first.rank} {first.text}"


def tabs(names: Sequence[str], chosen: int, width: int) -> str:
    """`1 overview  2 program  …`; only numbers where names do not fit."""
    parts = [
        f"[reverse] {label} [/reverse]" if n == chosen else f" {label} "
        for n, label in enumerate(_labels(names, chosen, width))
    ]
    return "".join(parts)


def _labels(names: Sequence[str], chosen: int, width: int) -> list[str]:
    full = [f"{n} {name}" for n, name in enumerate(names, 1)]
    if sum(map(len, full)) + 2 * len(full) <= width:
        return full
    return [label if n == chosen else str(n + 1) for n, label in enumerate(full)]


def tab_at(names: Sequence[str], chosen: int, width: int, x: int) -> int | None:
    """Which tab stands at a cell of that line."""
    left = 0
    for number, label in enumerate(_labels(names, chosen, width)):
        left += len(label) + 2
        if x < left:
            return number
    return None


def slider(player: Player, over: bool, width: int) -> str:
    """Where in the run we are: `▶ live ━━━━━━━━●───── 12.3 of 40.1 s`."""
    newest = "■ end" if over else "● live"
    mode = newest if player.live else "▶ plays" if player.playing else "‖ held"
    at, whole = (player.at - player.began) / 1e9, (player.until - player.began) / 1e9
    text = f"{at:.1f} of {whole:.1f} s"
    bar = _bar(width)
    place = round(player.share * (bar - 1))
    line = "━" * place + "●" + "─" * (bar - 1 - place) if bar > 1 else ""
    return clipped(f"{mode:<{_LEFT}}{line} {text}", width)


def _bar(width: int) -> int:
    return max(width - _LEFT - _RIGHT - 1, 0)


def share_at(x: int, width: int) -> float:
    """The part of the run that a cell of the slider stands for."""
    return min(max((x - _LEFT) / max(_bar(width) - 1, 1), 0.0), 1.0)


def keys(live: bool, width: int) -> str:
    return clipped(_LIVE if live else _PAST, width).rstrip()
