"""The loop: carry out a stream of instructions, each as soon as it is ready, in order.

The script's own calls enter a phase; a cursor stands in the phase's stream and never skips. Knows
no instruction: handlers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sgplan.interpreter.registry import handler_of
from sgplan.interpreter.track import Track
from sgplan.interpreter.tracked_places import place_of
from sgplan.planner.program import Instruction


class Cursor:
    """A place in a stream of instructions.

    Args:
        instructions: the stream, in program order.
        state: handed to every handler; owned by the caller.
        track: told of every instruction, before and behind it.
    """

    __slots__ = ("_state", "_steps", "_track", "at")

    def __init__(self, instructions: Iterable[Instruction], state: Any, track: Track) -> None:
        self._steps = [(handler_of(i), i, _place(track, i)) for i in instructions]
        self._state = state
        self._track = track
        self.at = 0

    def rewind(self) -> None:
        """Back to the first instruction."""
        self.at = 0

    def advance(self) -> None:
        """Carry out every instruction that is ready, stop at the first that is not."""
        steps, state, track = self._steps, self._state, self._track
        inside = -1  # the place of the last one
        while self.at < len(steps):
            handler, instruction, place = steps[self.at]
            if not handler.ready(state, instruction):
                break
            if place >= 0:
                if inside < 0:
                    track.enter(place)
                else:
                    track.next(place)
                inside = place
            handler.run(state, instruction)  # what raises is left with what is around it
            self.at += 1
        if inside >= 0:
            track.leave(inside)

    @property
    def done(self) -> bool:
        return self.at == len(self._steps)

    @property
    def current(self) -> Instruction | None:
        """What it waits for, None when the stream is done."""
        return None if self.done else self._steps[self.at][1]


def _place(track: Track, instruction: Instruction) -> int:
    """The number of an instruction's place; -1 when it has none."""
    name = place_of(instruction)
    return -1 if name is None else track.place(name)
