"""`sync`: settings of buckets that the stock path does not read, graphs that do not exist."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, no_effect, place_of
from sgplan.grammar.diagnostics import Diagnostic
from sgplan.grammar.written import WrittenBlock

_OURS = ("bucket", "first_bucket", "overlap", "wire", "transport")


def check_sync(view: View) -> Iterator[Diagnostic]:
    """Every `sync` block, with the `capture` block that speaks for the same model."""
    for block in view.all("sync"):
        if block.value("by", "auto") == "stock":
            because = place_of(block, "by", "stock DDP reduces the gradients")
            yield from no_effect(block, _OURS, "stock DDP does not read it", because)
        if block.value("by", "auto") == "in_graph":
            yield from _graphless(view, block)


def _graphless(view: View, sync: WrittenBlock) -> Iterator[Diagnostic]:
    capture = view.speaking_for("capture", sync)
    if capture is not None and capture.value("engine", "auto") == "eager":
        yield Diagnostic(
            "SG0520",
            "`by = in_graph` needs a graph, and the engine makes none",
            place_of(sync, "by"),
            (place_of(capture, "engine", "the engine is chosen here"),),
            help="write `engine = inductor`, or `by = hooks`",
        )
