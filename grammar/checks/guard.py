"""`guard`: one rule an input, values of the right kind, padding with a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from sgplan.grammar.checks.view import View, alike, no_effect, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.literals import DEVICES, DTYPES, GuardPath, Interval, Pad
from sgplan.grammar.written import WrittenBlock


def check_guard(view: View) -> Iterator[Diagnostic]:
    """Every guard by itself, and against the guards before it."""
    for block in view.all("guard"):
        yield from _idle(block)
        yield from _no_engine(view, block)
        yield from _kinds(block)
        yield from _padding(view, block)
    for earlier, block in alike(view.all("guard"), _watched):
        yield Diagnostic(
            "SG0703",
            f"`{earlier.address}` and `{block.address}` watch the same value",
            place_of(block, "on", "watched again"),
            (place_of(earlier, "on", "watched here first"),),
            help="write a `priority` in one of them, or take one out",
        )


def _watched(block: WrittenBlock) -> tuple[object, ...] | None:
    path = block.get("on")
    if path is None:
        return None
    return path.value, block.value("model", None), block.value("priority", 0)


def _idle(block: WrittenBlock) -> Iterator[Diagnostic]:
    otherwise = block.get("otherwise")
    if otherwise is not None and otherwise.value != "recompile":
        because = Label(otherwise.span, "nothing is compiled again")
        yield from no_effect(block, ("budget", "spent"), "it counts compiles", because)


def _no_engine(view: View, block: WrittenBlock) -> Iterator[Diagnostic]:
    """What is compiled for a value cannot matter where nothing is compiled."""
    capture, path = view.speaking_for("capture", block), block.get("on")
    engine = None if capture is None else capture.get("engine")
    if engine is None or engine.value != "eager" or path is None:
        return
    if path.value.what == "shape" or block.value("otherwise", "recompile") != "error":
        yield Diagnostic(
            "SG0227",
            f"`{block.address}` can have no effect",
            Label(block.span, "it is about what is compiled"),
            (Label(engine.span, "nothing is compiled"),),
            help="take the guard out, or write `engine = auto`",
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a guard of one kind may allow."""

    watches: str
    takes: str
    example: str
    fits: Callable[[object], bool]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value >= 1


def _word_of(words: tuple[str, ...]) -> Callable[[object], bool]:
    return lambda value: value in words


_SCALARS = _Kind("number, word or switch", "numbers", "[0.5, 1]", lambda value: value not in DTYPES)
_KINDS = {
    "shape": _Kind("size", "sizes", "[32, 64]", _is_size),
    "dtype": _Kind("type", "types", "[float32]", _word_of(DTYPES)),
    "device": _Kind("device", "devices", "[cuda]", _word_of(DEVICES)),
    "value": _SCALARS,
    "attribute": _SCALARS,
}


def _kinds(block: WrittenBlock) -> Iterator[Diagnostic]:
    path, allow = block.get("on"), block.get("allow")
    if path is None or allow is None:
        return
    on: GuardPath = path.value
    kind = _KINDS[on.what]
    values = tuple(_allowed(allow.value))
    if all(kind.fits(value) for value in values):
        return
    yield Diagnostic(
        "SG0705",
        f"`allow` holds {_held(values)}, and the guard watches a {kind.watches}",
        Label(allow.value_span),
        (Label(path.value_span, "watched here"),),
        help=f"write {kind.takes}, like `{kind.example}`",
    )


def _allowed(value: Any) -> Iterator[object]:
    """What a list holds; of a range its ends."""
    if isinstance(value, tuple):
        yield from cast("tuple[object, ...]", value)
        return
    yield from (end for end in (value.low, value.high) if end is not None)


def _held(values: tuple[object, ...]) -> str:
    if all(isinstance(value, int) for value in values):
        return "sizes" if all(map(_is_size, values)) else "numbers below 1"
    if all(isinstance(value, float | int) for value in values):
        return "numbers"
    return "types" if all(value in DTYPES for value in values) else "words"


def _padding(view: View, block: WrittenBlock) -> Iterator[Diagnostic]:
    otherwise, allow = block.get("otherwise"), block.value("allow", None)
    if (
        otherwise is None
        or not isinstance(otherwise.value, Pad)
        or not view.is_sure(block, "allow")
    ):
        return
    path = block.get("on")
    if path is not None and (path.value.what != "shape" or path.value.input == "*"):
        yield Diagnostic(
            "SG0720",
            f"`pad` pads one argument along one dim, which `{path.value}` does not name",
            Label(otherwise.value_span),
            (Label(path.value_span, "watched here"),),
            help="watch a size, like `input[0].shape[0]`",
        )
        return
    endless = isinstance(allow, Interval) and allow.high is None
    if allow is None or endless:
        yield Diagnostic(
            "SG0707",
            "`pad` pads to an allowed size, and none is the largest",
            Label(otherwise.value_span),
            (place_of(block, "allow"),) if endless else (),
            help="write `allow` with a list of sizes, or with a range that ends",
        )
