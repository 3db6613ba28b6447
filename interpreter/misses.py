"""What could not be captured: graph breaks, frames over the recompile limit, roots without a graph.

Reads Dynamo's counters and its own warning; refuses to guess reasons.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable

from sgplan.planner import torch_api
from sgplan.planner.facts import MissFact

_LIMIT = re.compile(r"hit config\.(\S+) \((\d+)\)\s+function: '([^']*)'(?:.*?last reason: ([^\n]*))?", re.S)


class Misses:
    """Collects misses of one process; each is handed out once.

    Attributes:
        found: in the order in which they were seen.
    """

    def __init__(self, say: Callable[[MissFact], None]) -> None:
        self._say = say
        self._breaks: dict[str, int] = {}
        self.found: list[MissFact] = []

    def install(self) -> None:
        """Listen to Dynamo's warning that a frame runs eagerly from now on."""
        logging.getLogger("torch._dynamo.convert_frame").addHandler(_LimitHandler(self._add))

    def collect(self) -> None:
        """Look at the graph breaks counted since the last time."""
        if "torch._dynamo.utils" not in sys.modules:
            return
        for text, count in torch_api.dynamo_counters()["graph_break"].items():
            if self._breaks.get(text) is None:
                self._add(_from_break(text))
            self._breaks[text] = count

    def _add(self, miss: MissFact) -> None:
        if miss not in self.found:
            self.found.append(miss)
            self._say(miss)


def _from_break(text: str) -> MissFact:
    """Dynamo's graph break text: a headline, an explanation, hints, and the developer's context."""
    lines = [line.strip() for line in text.strip().splitlines()]
    headline = lines[0] if lines else "graph break"
    explanation = next((line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")), "")
    return MissFact(headline, explanation or headline)


class _LimitHandler(logging.Handler):
    """`torch._dynamo hit config.recompile_limit (8) function: 'forward' … last reason: …`."""

    def __init__(self, add: Callable[[MissFact], None]) -> None:
        super().__init__(logging.WARNING)
        self._add = add

    def emit(self, record: logging.LogRecord) -> None:
        found = _LIMIT.search(record.getMessage())
        if found is not None:
            setting, limit, function, reason = found.groups()
            why = f"fell back to eager: {setting} {limit} is spent; the last reason: {(reason or 'not given').strip()}"
            self._add(MissFact(function, why))
