"""Refusals on stderr: the one place of the command line that turns diagnostics into text there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from sgplan.grammar.diagnostics import Diagnostic, Refused


class RefusedPlan(Refused):
    """A refusal together with the texts its spans point into."""

    def __init__(self, diagnostics: Iterable[Diagnostic], sources: Mapping[str, str]) -> None:
        super().__init__(diagnostics)
        self.sources = dict(sources)


def print_refusal(refused: Refused) -> None:
    """Every diagnostic of a refusal, with source lines where they are known."""
    print_diagnostics(refused.diagnostics, getattr(refused, "sources", {}))


def print_diagnostics(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str]) -> None:
    """Render on stderr, coloured on a terminal unless NO_COLOR is set."""
    from sgplan.grammar.render import COLOUR, PLAIN, render_all

    diagnostics = list(diagnostics)
    if not diagnostics:
        return
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stderr.write(render_all(diagnostics, sources, COLOUR if colour else PLAIN))
    sys.stderr.flush()
