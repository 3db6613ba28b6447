"""`recover`: a checkpoint to replay from, and a heart that beats faster than death is called."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, no_effect, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.written import WrittenBlock


def check_recover(view: View) -> Iterator[Diagnostic]:
    """The block against `checkpoint`, and its times against each other."""
    block = view.one("recover")
    if block is None:
        return
    yield from _nothing_to_replay(view, block)
    if view.is_sure(block, "heartbeat", "timeout"):
        yield from _deaf(block)
    if block.value("restarts", 3) == 0:
        because = place_of(block, "restarts", "nothing is restarted")
        yield from no_effect(block, ("resume", "spare"), "it is read at a restart", because)


def _nothing_to_replay(view: View, block: WrittenBlock) -> Iterator[Diagnostic]:
    replays = view.is_sure(block, "resume") and block.value("resume", "replay") == "replay"
    if not replays or view.one("checkpoint") is not None or block.value("restarts", 3) == 0:
        return
    written = block.get("resume")
    label = "" if written else "`resume` is `replay` when it is not written"
    yield Diagnostic(
        "SG0801",
        "`recover` replays from a checkpoint, and the plan has no `checkpoint` block",
        place_of(block, "resume", label),
        help="write `checkpoint { }`, or `resume = rerun`",
    )


def _deaf(block: WrittenBlock) -> Iterator[Diagnostic]:
    heartbeat, timeout = block.value("heartbeat", 1.0), block.value("timeout", 60.0)
    if heartbeat < timeout:
        return
    places = [Label(s.span) for name in ("timeout", "heartbeat") if (s := block.get(name))]
    yield Diagnostic(
        "SG0802",
        f"a rank is called dead after {timeout:g}s, before its next heartbeat at {heartbeat:g}s",
        places[0],
        tuple(places[1:]),
        help="let `timeout` be several heartbeats",
    )
