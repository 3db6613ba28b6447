"""The one line that says how far a run is: repainted on a terminal, sparse lines elsewhere.

Knows the line's words and where the cursor may be; knows nothing of files or processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from sgplan.planner.units import human_rate, human_share
from sgplan.summary import Summary

REFRESH = 0.5
SPARSE = 10.0
RECENT = 100
_SETTLE = 0.1


def describe(summary: Summary) -> str:
    """The progress line's words; empty before the first rank has attached."""
    if not summary.ranks:
        return ""
    if summary.steps == 0:
        return _before_steps(summary)
    loss = "-" if summary.loss is None else f"{summary.loss:.4g}"
    recompiles = sum(line.count for line in summary.recompiles.lines())
    parts = [
        f"step {summary.steps}",
        f"loss {loss}",
        f"{human_rate(summary.samples_per_second(RECENT))} samples/s",
        f"comm {human_share(summary.wait_share(RECENT))} exposed",
        f"{recompiles} recompile{'s' if recompiles != 1 else ''}",
    ]
    return "  ".join(parts + _compiling(summary))


def _before_steps(summary: Summary) -> str:
    count = len(summary.ranks)
    return "  ".join([f"{count} rank{'s' if count != 1 else ''} attached", *_compiling(summary)])


def _compiling(summary: Summary) -> list[str]:
    regions = sorted({r.compiling for r in summary.ranks.values() if r.compiling})
    return [f"compiling {', '.join(regions)}"] if regions else []


class Silent:
    """`--quiet`: events are not even read before the end."""

    def clear(self) -> None:
        return

    def tick(self, free: bool) -> None:
        return


class Unseen:
    """Nothing is painted here, but events are read as they come, for who judges them."""

    def __init__(self, poll: Callable[[], Summary]) -> None:
        self._poll = poll
        self._next_poll = 0.0

    def clear(self) -> None:
        return

    def tick(self, free: bool) -> None:
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + REFRESH
            self._poll()


class TerminalLine:
    """One line on a terminal, repainted twice a second while the cursor is at a line's start."""

    def __init__(self, poll: Callable[[], Summary], file: TextIO) -> None:
        self._poll = poll
        self._console = Console(file=file, highlight=False)
        self._line = ""
        self._shown = ""
        self._next_poll = 0.0
        self._not_before = 0.0

    def clear(self) -> None:
        if self._shown:
            self._console.control(
                Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
            )
            self._shown = ""
            # A child that prints line after line would make it flicker.
            self._not_before = time.monotonic() + _SETTLE

    def tick(self, free: bool) -> None:
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + REFRESH
            self._line = describe(self._poll())
        # With half a line of the child on the screen, painting would destroy it.
        if free and now >= self._not_before and self._line not in ("", self._shown):
            self.clear()
            self._paint()

    def _paint(self) -> None:
        text = Text(f"sgplan  {self._line}", style="dim", no_wrap=True, overflow="ellipsis")
        text.truncate(self._console.width - 1, overflow="ellipsis")
        self._console.print(text, end="")
        self._shown = self._line


class SparseLines:
    """Without a terminal: one line at the first step, then one every ten seconds."""

    def __init__(self, poll: Callable[[], Summary]) -> None:
        self._poll = poll
        self._next_poll = 0.0
        self._next_line = 0.0
        self._last_step = 0

    def clear(self) -> None:
        return

    def tick(self, free: bool) -> None:
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + REFRESH
        summary = self._poll()
        if summary.steps > self._last_step and now >= self._next_line:
            self._last_step = summary.steps
            self._next_line = now + SPARSE
            print(f"sgplan: {describe(summary)}", file=sys.stderr, flush=True)
