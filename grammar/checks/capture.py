"""`capture`: settings of an engine that is not used."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, no_effect, place_of
from sgplan.grammar.diagnostics import Diagnostic

_INDUCTOR_ONLY = ("autotune", "cuda_graphs", "rounding", "random")


def check_capture(view: View) -> Iterator[Diagnostic]:
    """What only Inductor can do, under another engine."""
    for block in view.all("capture"):
        engine = block.value("engine", "auto")
        if engine in ("eager", "as_written"):
            because = place_of(block, "engine", "the engine is chosen here")
            yield from no_effect(block, _INDUCTOR_ONLY, "only Inductor does this", because)
