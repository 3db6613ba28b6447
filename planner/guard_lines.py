"""Guards in words: what they allow, which variants that declares, and the line that allows more.

Pure: blocks of the plan in, text out. Values are numbers, booleans (`on`, `off`), strings, and the
words of types and devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sgplan.grammar.literals import DEVICES, DTYPES, SWITCHES
from sgplan.grammar.plan import Guard, GuardPath, Interval, Pad, Plan, RealInterval
from sgplan.planner.units import counted

# More whole numbers than this are better allowed as a range, which is one variant.
LISTED = 4
_WORDS = frozenset((*DTYPES, *DEVICES, *SWITCHES))


def spelled(value: Any) -> str:
    """A value as a plan writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str) and value not in _WORDS:
        return f'"{value}"'
    if isinstance(value, tuple):
        return " and ".join(dict.fromkeys(map(spelled, value)))
    return str(value)


def guard_line(guard: Guard, allow: Sequence[Any] | Interval | RealInterval) -> str:
    """The guard as it would be written with that `allow`; what was written beside it stays."""
    parts = [] if guard.model is None else [f'model = "{guard.model}"']
    parts += [f"on = {guard.on}", f"allow = {allow_text(allow)}"]
    if "otherwise" in guard.written:
        parts.append(f"otherwise = {_otherwise(guard.otherwise)}")
    numbers = ("budget", "spent", "priority")
    parts += [f"{name} = {getattr(guard, name)}" for name in numbers if name in guard.written]
    return f'guard "{guard.label}" {{ {"  ".join(parts)} }}'


def _otherwise(value: str | Pad) -> str:
    if not isinstance(value, Pad):
        return value
    given = {
        "with": value.with_,
        "ignore": value.ignore,
        "mask": value.mask,
        "weight": value.weight,
    }
    shown = (f"{name} = {_argument(found)}" for name, found in given.items() if found is not None)
    return f"pad({', '.join(shown)})"


def _argument(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def allow_text(allow: Sequence[Any] | Interval | RealInterval) -> str:
    """`[32, 64]` or `128..2048`."""
    if isinstance(allow, Interval | RealInterval):
        return str(allow)
    return f"[{', '.join(map(spelled, allow))}]"


def line_for(path: GuardPath, old: Any, new: Any) -> str:
    """The line that declares a value which the compiler found to vary; both values in a list."""
    name = _label(path)
    values = [value for value in dict.fromkeys((old, new)) if value is not None]
    return f'guard "{name}" {{ on = {path}  allow = {allow_text(_sorted(values))} }}'


def _label(path: GuardPath) -> str:
    """A label from what is watched: `input_0_shape_1`."""
    parts = (str(path.input).replace(".", "_"), path.attribute, path.what, path.dim)
    words = [str(part) for part in parts if part not in (None, "", "attribute", "value")]
    head = "module" if path.what == "attribute" else "input"
    return "_".join([head, *words]).replace("*", "all").replace("-", "last")


def with_value(guard: Guard, allowed: Sequence[Any], new: Any) -> str:
    """The line that allows `new` beside what is allowed.

    Args:
        allowed: the values of a list, and those that were met beyond it.
    """
    known = guard.allow
    if isinstance(known, Interval | RealInterval):
        return guard_line(guard, _widened(known, new))
    values = _sorted([*allowed, *_each(new)])
    if len(values) > LISTED and all(type(value) is int for value in values):
        return guard_line(guard, Interval(values[0], values[-1]))
    return guard_line(guard, values)


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _sorted(values: Sequence[Any]) -> list[Any]:
    once = list(dict.fromkeys(values))
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in once)
    return sorted(once) if numbers else once


def _widened(known: Interval | RealInterval, new: Any) -> Sequence[Any] | Interval | RealInterval:
    """The range that holds the value too; a list when it is no number."""
    if isinstance(new, bool) or not isinstance(new, int | float):
        return [new]
    low = known.low if known.low is None else min(known.low, new)
    high = known.high if known.high is None else max(known.high, new)
    if isinstance(low, float) or isinstance(high, float):
        return RealInterval(low, high)
    return Interval(low, high)


def apart(guard: Guard) -> tuple[int, ...]:
    """Numbers of a range that torch compiles for themselves: 1, and of what is no size 0 too."""
    special = (1,) if guard.on.what == "shape" else (0, 1)
    return tuple(n for n in special if isinstance(guard.allow, Interval) and n in guard.allow)


def declared(guard: Guard) -> str:
    """Which variants a guard declares: `one for each of [32, 64]`."""
    allow = guard.allow
    if allow is None:
        return "one for the first value seen"
    if isinstance(allow, Interval | RealInterval):
        alone = "".join(f", one for {number}" for number in apart(guard))
        return f"one for {allow}{alone}"
    return f"one for each of {allow_text(allow)}"


def beyond(guard: Guard) -> str:
    """What happens to a value that is not allowed."""
    if isinstance(guard.otherwise, Pad):
        return f"else {_otherwise(guard.otherwise)} to the next allowed size"
    if guard.otherwise != "recompile":
        return f"else {guard.otherwise}"
    then = "an error" if guard.spent == "error" else "eager"
    return f"else up to {counted(guard.budget, 'more compile')}, then {then}"


def guard_rows(plan: Plan) -> Iterator[list[str]]:
    """A row for each guard: address, path, variants, what happens beyond."""
    for guard in plan.guards:
        yield [f"  {guard.address}", str(guard.on), declared(guard), beyond(guard)]


def holding(plan: Plan, root: str | None) -> tuple[Guard, ...]:
    """The guards for one root; of those on one path the one of the highest priority.

    Of one priority the one that names the model holds, wherever it is written.
    """
    found = [g for g in plan.guards if g.model in (None, root)]
    found.sort(key=lambda guard: (-(guard.priority or 0), guard.model is None))
    best: dict[GuardPath, Guard] = {}
    for guard in found:
        best.setdefault(guard.on, guard)
    return tuple(sorted(best.values(), key=lambda g: g.span.start if g.span else 0))


def needs_graph(guard: Guard) -> bool:
    """Whether a guard says something of compiled code, which eager calls do not have."""
    return guard.on.what == "shape" or guard.otherwise != "error"
