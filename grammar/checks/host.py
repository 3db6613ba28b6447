"""`host`: every core once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from sgplan.grammar.checks.view import View, place_of
from sgplan.grammar.diagnostics import Diagnostic
from sgplan.grammar.literals import Interval


def check_host(view: View) -> Iterator[Diagnostic]:
    """Cores that stand in the list twice, by number or inside a range."""
    block = view.one("host")
    cores = None if block is None else block.value("cores", "auto")
    if block is None or not isinstance(cores, tuple):
        return
    written = cast("tuple[int | Interval, ...]", cores)
    items = [item if isinstance(item, Interval) else Interval(item, item) for item in written]
    for index, item in enumerate(items):
        for earlier in items[:index]:
            core = max(item.low or 0, earlier.low or 0)
            if core in item and core in earlier:
                yield Diagnostic(
                    "SG0307",
                    f"core {core} is in the list twice",
                    place_of(block, "cores"),
                    help="name every core once",
                )
                return
