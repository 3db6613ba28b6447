"""One argument of a module's call: where it is found, and what Dynamo calls it.

The only place that knows how Dynamo spells the arguments of a captured call (`L['args'][0]`,
`L['kwargs']['x']`, in reasons also `args[0]`), and the locals of other frames (`L['x']`).
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from torch import nn

MISSING = inspect.Parameter.empty

_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_GIVEN = re.compile(r"^(?:L\[')?(?:args|kwargs)(?:'\])?\[(?:(?P<place>\d+)|'(?P<name>[^']+)')\]$")
_LOCAL = re.compile(r"^(?:L\[')?([A-Za-z_]\w*)(?:'\])?$")


class NotThere(LookupError):
    """A path that leads nowhere, or to something no guard can watch; says which."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a `forward`, however a call passes it.

    Attributes:
        place: among the arguments passed by place; None for one that has to be named.
        name: None for one that cannot be named.
        default: `MISSING` without one.
    """

    place: int | None
    name: str | None
    default: Any = MISSING

    @classmethod
    def of(cls, key: int | str, module: nn.Module) -> Argument:
        """The argument of that place or name.

        Raises:
            NotThere: no call of the module can have it.
        """
        parameters = list(inspect.signature(module.forward).parameters.values())
        kinds = {parameter.kind for parameter in parameters}
        placed = [parameter for parameter in parameters if parameter.kind in _PLACED]
        for place, parameter in enumerate(placed):
            if key in (place, parameter.name):
                name = parameter.name if parameter.kind in _NAMED else None
                return cls(place, name, parameter.default)
        if isinstance(key, int):
            if inspect.Parameter.VAR_POSITIONAL in kinds:
                return cls(key, None)
        else:
            named = {p.name: p.default for p in parameters if p.kind in _NAMED}
            if key in named or inspect.Parameter.VAR_KEYWORD in kinds:
                return cls(None, key, named.get(key, MISSING))
        known = ", ".join(
            f'`input["{p.name}"]`' for p in parameters if p.kind in (*_PLACED, *_NAMED)
        )
        raise NotThere(f"names no argument of `forward`; it has {known or 'none'}")

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its value in one call; `MISSING` when the call has none."""
        if self.place is not None and self.place < len(args):
            return args[self.place]
        return self.default if self.name is None else kwargs.get(self.name, self.default)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names that Dynamo may have for it in the frame of a captured call."""
        place = () if self.place is None else (by_place(self.place),)
        name = () if self.name is None else (by_name(self.name),)
        return (*place, *name)


def by_place(place: int) -> str:
    """Dynamo's name for what a captured call passes by place."""
    return f"L['args'][{place}]"


def by_name(name: str) -> str:
    """Dynamo's name for what a captured call passes by name."""
    return f"L['kwargs'][{name!r}]"


def given_key(source: str) -> int | str | None:
    """Place or name of an argument in the frame of a captured call; None for anything else."""
    found = _GIVEN.match(source)
    if found is None:
        return None
    return found["name"] if found["place"] is None else int(found["place"])


def local_name(source: str) -> str | None:
    """Name of a local of a frame that is not a captured call's; None for anything else."""
    found = _LOCAL.match(source)
    return found[1] if found and found[1] not in ("self", "fn", "args", "kwargs") else None
