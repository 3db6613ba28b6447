"""`recompute`: one measure of how much, and a share that makes sense."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label


def check_recompute(view: View) -> Iterator[Diagnostic]:
    """Exactly one of `memory` and `every`."""
    for block in view.all("recompute"):
        memory, every = block.get("memory"), block.get("every")
        if memory is not None and every is not None:
            yield Diagnostic(
                "SG0706",
                f"`{block.address}` says twice how much to compute again",
                Label(every.span, "by modules"),
                (Label(memory.span, "by memory"),),
                help="take one of them out",
            )
        elif not view.writes(block, "memory") and not view.writes(block, "every"):
            yield Diagnostic(
                "SG0224",
                f"`{block.address}` has neither `memory` nor `every`",
                Label(block.span, "how much is computed again"),
                help="write `memory = 50%` or `every = 2modules`",
            )
        if memory is not None and memory.value >= 1:
            yield Diagnostic(
                "SG0708",
                "nothing is computed again when all memory may be used",
                place_of(block, "memory"),
                help="write less than `100%`",
            )
