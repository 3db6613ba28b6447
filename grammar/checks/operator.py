"""`operator`: ops that are custom, each admitted once."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, alike, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label


def check_operator(view: View) -> Iterator[Diagnostic]:
    """Ops of torch itself, and ops with two blocks."""
    for block in view.all("operator"):
        op = block.get("op")
        if op is None:
            continue
        if op.value.startswith(("aten.", "aten::", "prims.", "prims::")):
            yield Diagnostic(
                "SG0604",
                f"`{op.value}` belongs to torch and needs no admission",
                Label(op.value_span),
                help="take the block out",
            )
    for earlier, block in alike(view.all("operator"), lambda block: block.value("op", None)):
        yield Diagnostic(
            "SG0605",
            f"`{block.value('op', '')}` is admitted twice",
            place_of(block, "op", "the second time"),
            (place_of(earlier, "op", "the first time"),),
            help="take one of the blocks out",
        )
