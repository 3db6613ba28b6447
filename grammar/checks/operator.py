"""`operator`: ops that are custom, each admitted once."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.written import Setting


def check_operator(view: View) -> Iterator[Diagnostic]:
    """Ops of torch itself, and ops with two blocks."""
    first: dict[str, Setting] = {}
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
        earlier = first.setdefault(op.value, op)
        if earlier is not op:
            yield Diagnostic(
                "SG0605",
                f"`{op.value}` is admitted twice",
                Label(op.value_span, "the second time"),
                (Label(earlier.value_span, "the first time"),),
                help="take one of the blocks out",
            )
