"""`slo`: something to enforce."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, no_effect
from sgplan.grammar.diagnostics import Diagnostic

_LEVELS = ("step_p99", "recovery", "throughput")


def check_slo(view: View) -> Iterator[Diagnostic]:
    """`enforce = on` without any level."""
    block = view.one("slo")
    if block is None or any(view.writes(block, name) for name in _LEVELS):
        return
    if block.value("enforce", "off") == "on":
        yield from no_effect(block, ("enforce",), "no level is set")
