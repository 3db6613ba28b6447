"""How plan mode ends: at the first backward, on every rank, with exit status 0 and nothing updated.

All that a plan needs is captured by then (the backward of a compiled graph is lowered with its
forward). The ranks meet through the store, not by a collective, for a bounded time: a rank that
never reaches a backward is ended by its watching thread once the others are done.
"""

from __future__ import annotations

import time

from sgplan.interpreter import events, shortfalls
from sgplan.interpreter.meeting import Meeting, block_saves
from sgplan.interpreter.rank import Rank

# Seconds after which a straggler is ended: less than the others wait for it.
STRAGGLER = 20.0


class PlanMode:
    """Ends one rank in plan mode."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._meeting = Meeting(rank, "planned")
        self._others_done_since: float | None = None

    def install(self) -> None:
        """Block `torch.save` and watch the other ranks."""
        block_saves(self._rank, "planning")

    def finish(self) -> None:
        """The script came to its first backward or optimizer step: the plan is complete."""
        rank = self._rank
        rank.report(shortfalls.unmatched_models(rank))
        rank.report(rank.planner.selectors(rank.plan, rank.facts()))
        rank.report(rank.planner.miscounted(rank.plan, rank.facts()))
        rank.write_part()
        self._meeting.arrive()
        rank.leave("planned", "", 0)

    def on_idle(self) -> None:
        """Called by the recording thread: end a rank the others do not wait for any more."""
        if self._rank.world == 1 or self._rank.capturing or not self._meeting.arrived():
            self._others_done_since = None
            return
        if self._others_done_since is None:
            self._others_done_since = time.monotonic()
        elif time.monotonic() - self._others_done_since > STRAGGLER:
            self._rank.once(events.NoteAdded, "plan", f"rank {self._rank.rank} reached no backward")
            self._rank.leave("planned", "reached no backward", 0)
