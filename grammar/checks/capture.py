"""`capture`: settings of an engine that is not used, and of the run in a block for one model."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, no_effect, place_of
from sgplan.grammar.diagnostics import Diagnostic

_INDUCTOR_ONLY = ("autotune", "cuda_graphs", "rounding", "random")


def check_capture(view: View) -> Iterator[Diagnostic]:
    """What only Inductor can do, under another engine; the budget of the run."""
    for block in view.all("capture"):
        if block.get("model") is not None:
            because = place_of(block, "model", "the block is for this model")
            yield from no_effect(block, ("recompiles",), "all models share this budget", because)
        engine = block.value("engine", "auto")
        if engine in ("eager", "as_written"):
            because = place_of(block, "engine", "the engine is chosen here")
            yield from no_effect(block, _INDUCTOR_ONLY, "only Inductor does this", because)
