"""What could not be captured, each with its place: graph breaks, frames over the recompile limit.

Listens to Dynamo's own log records, which carry the place and the reason; refuses to guess either.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from sgplan.interpreter.places import spelled_place
from sgplan.planner.facts import MissFact

# Dynamo's artifact loggers for graph breaks, and its warning that a frame runs eagerly from now on.
BREAK_LOGGERS = (
    "torch._dynamo.symbolic_convert.__graph_breaks",
    "torch._dynamo.convert_frame.__graph_breaks",
)
LIMIT_LOGGER = "torch._dynamo.convert_frame"

_PLACE = re.compile(r"in user code at (?P<file>.+):(?P<line>\d+)")
_SKIPPED = re.compile(r"skip tracing the frame (?P<name>\S+) \((?P<file>.+) line (?P<line>\d+)\)")
_REASON = re.compile(r"Graph Break Reason: (?P<text>[^\n]*)")
_EXPLANATION = re.compile(r"Explanation: (?P<text>[^\n]*)")
_LIMIT = re.compile(
    r"hit config\.(?P<setting>\S+) \((?P<limit>\d+)\)\s+function: '(?P<function>[^']*)'"
    r"(?:.*?last reason: (?P<reason>[^\n]*))?",
    re.S,
)
# The frame of a captured module's call, named in `torch_api.wrap_inline` or `guarded.py`.
_WRAPPED = re.compile(r"^'?(\w[\w.<>]*?)_call_v?\d+.*$", re.S)


class Misses:
    """Hands out each miss of this process once."""

    def __init__(self, say: Callable[[MissFact], None]) -> None:
        self._say = say
        self._said: set[MissFact] = set()

    def install(self) -> None:
        """Listen to the loggers, without printing what the script did not ask to see."""
        for name in BREAK_LOGGERS:
            logger = logging.getLogger(name)
            if not logger.isEnabledFor(logging.DEBUG):
                logger.setLevel(logging.DEBUG)
                logger.propagate = False
            logger.addHandler(_Listener(self._add, graph_break))
        logging.getLogger(LIMIT_LOGGER).addHandler(_Listener(self._add, limit_spent))

    def _add(self, miss: MissFact) -> None:
        if miss not in self._said:
            self._said.add(miss)
            self._say(miss)


class _Listener(logging.Handler):
    def __init__(
        self, add: Callable[[MissFact], None], read: Callable[[str], MissFact | None]
    ) -> None:
        super().__init__(logging.DEBUG)
        self._add = add
        self._read = read

    def emit(self, record: logging.LogRecord) -> None:
        miss = self._read(record.getMessage())
        if miss is not None:
            self._add(miss)


def graph_break(text: str) -> MissFact | None:
    """A graph break (`train.py:12`) or a skipped frame (`forward, train.py:8`), else None."""
    skipped = _SKIPPED.search(text)
    place = skipped or _PLACE.search(text)
    if place is None:
        return None
    where = spelled_place(place["file"], place["line"])
    if skipped is not None:
        return MissFact(
            f"{skipped['name']}, {where}",
            "the frame runs as plain Python: it cannot be resumed after a graph break",
        )
    # The headline names the bytecode that was traced; the explanation says what the user did.
    reason = _EXPLANATION.search(text) or _REASON.search(text)
    return MissFact(where, "graph break" if reason is None else reason["text"].strip())


def limit_spent(text: str) -> MissFact | None:
    """A function that fell back to eager because it was compiled too often."""
    found = _LIMIT.search(text)
    if found is None:
        return None
    last = (found["reason"] or "not given").strip()
    return MissFact(
        _WRAPPED.sub(r"\1.forward", found["function"]),
        f"fell back to eager: {found['setting']} {found['limit']} is spent; "
        f"the last reason: {last}",
    )
