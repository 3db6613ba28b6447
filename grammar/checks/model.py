"""`model`: two names for one model."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.written import WrittenBlock


def check_model(view: View) -> Iterator[Diagnostic]:
    """Blocks that mean the same instance of the same class."""
    first: dict[tuple[str, int], WrittenBlock] = {}
    for block in view.all("model"):
        named = block.get("is")
        if named is None or not view.is_sure(block, "nth"):
            continue
        nth = block.value("nth", 0)
        earlier = first.setdefault((named.value, nth), block)
        if earlier is not block:
            yield Diagnostic(
                "SG0234",
                f"`{earlier.address}` and `{block.address}` name the same model",
                Label(named.value_span, f"number {nth} of this class, again"),
                (place_of(earlier, "is", "the first name"),),
                help=f"write `nth = {nth + 1}` in the second for the next one of the class",
            )
