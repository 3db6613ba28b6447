"""Numbers with units: which exist, and how a written quantity is read.

This module knows spelling and arithmetic, not which attribute wants which unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BYTES = {
    "B": 1,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
UNITS = (*BYTES, *SECONDS, "steps", "modules", "%", "/s", *(f"{unit}/s" for unit in BYTES))

_QUANTITY = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)([A-Za-z%/]*)")


@dataclass(frozen=True, slots=True)
class Number:
    """A quantity taken apart: the number as text, and the unit (may be empty or unknown)."""

    digits: str
    unit: str

    @property
    def whole(self) -> int | None:
        """The number when it is written as a whole one."""
        return int(self.digits) if re.fullmatch(r"-?[0-9]+", self.digits) else None

    @property
    def real(self) -> float:
        return float(self.digits)


def take_apart(text: str) -> Number | None:
    """Number and unit of a quantity; None for things like `1f1b`."""
    match = _QUANTITY.fullmatch(text)
    return None if match is None else Number(*match.groups())


def same_but_case(unit: str) -> tuple[str, ...]:
    """The units that a misspelt one could be, judged by its letters: `mb` is `MB` or `MiB`."""
    wanted = unit.lower().replace("i", "")
    return tuple(known for known in UNITS if known.lower().replace("i", "") == wanted)


# What people write for a unit, beyond a wrong case.
_HABITS = {
    "sec": ("s",),
    "secs": ("s",),
    "second": ("s",),
    "seconds": ("s",),
    "m": ("min", "MB", "MiB"),
    "mins": ("min",),
    "minute": ("min",),
    "minutes": ("min",),
    "hr": ("h",),
    "hour": ("h",),
    "hours": ("h",),
    "step": ("steps",),
    "module": ("modules",),
    "percent": ("%",),
    "k": ("KB", "KiB"),
    "g": ("GB", "GiB"),
    "bytes": ("B",),
}


def meant(unit: str) -> tuple[str, ...]:
    """The units that an unknown one may stand for, of every kind of quantity."""
    return same_but_case(unit) or _HABITS.get(unit.lower(), ())
