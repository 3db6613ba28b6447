"""`guard`: one rule an input, values of the right kind, padding with a limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from sgplan.grammar.checks.view import View, alike, no_effect, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.literals import GuardPath, Interval, Pad
from sgplan.grammar.written import WrittenBlock


def check_guard(view: View) -> Iterator[Diagnostic]:
    """Every guard by itself, and against the guards before it."""
    for block in view.all("guard"):
        yield from _idle(block)
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


def _kinds(block: WrittenBlock) -> Iterator[Diagnostic]:
    path, allow = block.get("on"), block.get("allow")
    if path is None or allow is None:
        return
    on: GuardPath = path.value
    listed = isinstance(allow.value, tuple)
    values = cast("tuple[object, ...]", allow.value) if listed else (0,)
    wanted = str if on.what == "dtype" else int
    if all(isinstance(value, wanted) for value in values):
        return
    yield Diagnostic(
        "SG0705",
        f"`allow` holds {'sizes' if wanted is str else 'types'}, "
        f"and the guard watches a {'type' if wanted is str else 'size'}",
        Label(allow.value_span),
        (Label(path.value_span, "watched here"),),
        help="write types, like `[float32]`" if wanted is str else "write sizes, like `[32, 64]`",
    )


def _padding(view: View, block: WrittenBlock) -> Iterator[Diagnostic]:
    otherwise, allow = block.get("otherwise"), block.value("allow", None)
    if (
        otherwise is None
        or not isinstance(otherwise.value, Pad)
        or not view.is_sure(block, "allow")
    ):
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
