"""The handler table: instruction class -> how it is carried out. Registering twice is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgplan.planner.program import Instruction, Run, Update

# What the script's own calls carry out: a module call or a backward, and `optimizer.step()`.
ENTERED_BY_SCRIPT: frozenset[type] = frozenset({Run, Update})


@dataclass(frozen=True, slots=True)
class Handler:
    """How one kind of instruction is carried out.

    Attributes:
        ready: whether it can be carried out now; called with (state, instruction).
        run: carries it out; called with (state, instruction).
    """

    ready: Callable[[Any, Any], bool]
    run: Callable[[Any, Any], None]


_handlers: dict[type, Handler] = {}


def always(state: Any, instruction: Any) -> bool:
    """The readiness of an instruction that never waits for the script."""
    return True


def at_end(state: Any, instruction: Any) -> bool:
    """The readiness of an instruction that waits for the end of its phase."""
    return False


def handles(
    kind: type, *, ready: Callable[[Any, Any], bool] = always
) -> Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]:
    """Bind the decorated function to an instruction class."""

    def bind(run: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        if kind in _handlers:
            raise ValueError(f"instruction `{kind.__name__}` has a handler already")
        _handlers[kind] = Handler(ready, run)
        return run

    return bind


def handler_of(instruction: Instruction) -> Handler:
    """The handler of an instruction; KeyError when nobody carries it out."""
    return _handlers[type(instruction)]


def handled() -> frozenset[type]:
    """Every instruction class with a handler."""
    return frozenset(_handlers)
