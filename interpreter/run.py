"""The loop: carry out a stream of instructions, each as soon as it is ready, in order.

The script's own calls enter a phase; a cursor stands in the phase's stream and never skips. Knows
no instruction: handlers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sgplan.interpreter.registry import Handler, handler_of
from sgplan.planner.program import Instruction


class Cursor:
    """A place in a stream of instructions.

    Args:
        instructions: the stream, in program order.
        state: handed to every handler; owned by the caller.
    """

    __slots__ = ("_state", "_steps", "at")

    def __init__(self, instructions: Iterable[Instruction], state: Any) -> None:
        self._steps: list[tuple[Handler, Instruction]] = [(handler_of(i), i) for i in instructions]
        self._state = state
        self.at = 0

    def rewind(self) -> None:
        """Back to the first instruction."""
        self.at = 0

    def advance(self) -> None:
        """Carry out every instruction that is ready, stop at the first that is not."""
        steps, state = self._steps, self._state
        while self.at < len(steps):
            handler, instruction = steps[self.at]
            if not handler.ready(state, instruction):
                return
            handler.run(state, instruction)
            self.at += 1

    @property
    def done(self) -> bool:
        return self.at == len(self._steps)

    @property
    def current(self) -> Instruction | None:
        """What it waits for, None when the stream is done."""
        return None if self.done else self._steps[self.at][1]
