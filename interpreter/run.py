"""The loop: carry out a stream of instructions, each as soon as it is ready, in order.

The script's own calls enter a phase; a cursor stands in the phase's stream and never skips. Knows
no instruction: handlers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sgplan.interpreter.registry import handler_of
from sgplan.interpreter.track import Track
from sgplan.interpreter.tracked_places import place_of, stays
from sgplan.planner.program import Instruction


class Cursor:
    """A place in a stream of instructions.

    Args:
        instructions: the stream, in program order.
        state: handed to every handler; owned by the caller.
        track: told before and behind every instruction at which a rank may stay, and of the others
            in steps that are told in full.
    """

    __slots__ = ("_state", "_steps", "_track", "at")

    def __init__(self, instructions: Iterable[Instruction], state: Any, track: Track) -> None:
        self._steps = [_step(i, track) for i in instructions]
        self._state = state
        self._track = track
        self.at = 0

    def rewind(self) -> None:
        """Back to the first instruction."""
        self.at = 0

    def advance(self, *, to_end: bool = False) -> None:
        """Carry out every instruction that is ready, stop at the first that is not.

        Args:
            to_end: the phase is over, so that every instruction is ready.
        """
        steps, state, track = self._steps, self._state, self._track
        while self.at < len(steps):
            ready, run, instruction, place, may_stay = steps[self.at]
            if not to_end and not ready(state, instruction):
                break
            if place >= 0 and (may_stay or track.full):
                track.enter(place)
                run(state, instruction)  # what raises is left with what is around it
                track.leave(place)
            else:
                run(state, instruction)
            self.at += 1

    @property
    def done(self) -> bool:
        return self.at == len(self._steps)

    @property
    def current(self) -> Instruction | None:
        """What it waits for, None when the stream is done."""
        return None if self.done else self._steps[self.at].instruction


class _Step(NamedTuple):
    """An instruction with all that is looked up for it.

    Attributes:
        place: its number by the track; -1 when it has none.
        may_stay: whether a rank may stay at it.
    """

    ready: Callable[[Any, Any], bool]
    run: Callable[[Any, Any], None]
    instruction: Instruction
    place: int
    may_stay: bool


def _step(instruction: Instruction, track: Track) -> _Step:
    handler, name = handler_of(instruction), place_of(instruction)
    place = -1 if name is None else track.place(name)
    return _Step(handler.ready, handler.run, instruction, place, stays(instruction))
