"""`recompute`: one measure of how much, a share that makes sense, ops that no other block has."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.rules import graphless, same_ops
from sgplan.grammar.checks.view import View, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.written import WrittenBlock


def check_recompute(view: View) -> Iterator[Diagnostic]:
    """Every block by itself, and against those before it."""
    blocks = list(view.all("recompute"))
    for block in blocks:
        yield from _measure(view, block)
        yield from graphless(view, block)
    yield from same_ops(view, blocks)


def _measure(view: View, block: WrittenBlock) -> Iterator[Diagnostic]:
    """`memory` or `every`; with `match` neither is needed."""
    memory, every = block.get("memory"), block.get("every")
    if memory is not None and every is not None:
        yield Diagnostic(
            "SG0706",
            f"`{block.address}` says twice how much to compute again",
            Label(every.span, "by modules"),
            (Label(memory.span, "by memory"),),
            help="take one of them out",
        )
    elif not any(view.writes(block, name) for name in ("memory", "every", "match")):
        yield Diagnostic(
            "SG0224",
            f"`{block.address}` has neither `memory` nor `every`",
            Label(block.span, "how much is computed again"),
            help="write `memory = 50%` or `every = 2modules`",
        )
    if every is not None and not view.writes(block, "in"):
        yield Diagnostic(
            "SG0711",
            f"`{block.address}` counts modules and names none",
            Label(every.span, "modules of what?"),
            help='name them with `in`, as in `in = "layers.*"`',
        )
    if memory is not None and memory.value >= 1:
        yield Diagnostic(
            "SG0708",
            "nothing is computed again when all memory may be used",
            place_of(block, "memory"),
            help="write less than `100%`",
        )
