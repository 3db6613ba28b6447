"""`update`: steps inside the backward, which end an optimizer's own step."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, place_of
from sgplan.grammar.diagnostics import Diagnostic


def check_update(view: View) -> Iterator[Diagnostic]:
    """`in_backward` gives every parameter its own step: nothing is left to compile whole."""
    for block in view.all("update"):
        inside = block.value("when", "step") == "in_backward"
        if inside and block.value("optimizer", "as_written") == "compiled":
            yield Diagnostic(
                "SG0522",
                "`optimizer = compiled` compiles one step of all parameters, and there is none",
                place_of(block, "optimizer"),
                (place_of(block, "when", "every parameter steps by itself"),),
                help="write `when = step`, or another `optimizer`",
            )
