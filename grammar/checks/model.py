"""`model`: two names for one model."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, alike, place_of
from sgplan.grammar.diagnostics import Diagnostic
from sgplan.grammar.written import WrittenBlock


def check_model(view: View) -> Iterator[Diagnostic]:
    """Blocks that mean the same instance of the same class."""
    sure = (block for block in view.all("model") if view.is_sure(block, "nth"))
    for earlier, block in alike(sure, _instance):
        nth = block.value("nth", 0)
        yield Diagnostic(
            "SG0234",
            f"`{earlier.address}` and `{block.address}` name the same model",
            place_of(block, "is", f"number {nth} of this class, again"),
            (place_of(earlier, "is", "the first name"),),
            help=f"write `nth = {nth + 1}` in the second for the next one of the class",
        )


def _instance(block: WrittenBlock) -> tuple[str, int] | None:
    named = block.get("is")
    return None if named is None else (named.value, block.value("nth", 0))
