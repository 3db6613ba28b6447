"""Which root's call the script is in: what is compiled there belongs to that root.

A root calls its parts, and may call other roots; the innermost counts. Knows nothing of how a call
is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgplan.interpreter.roots import Root


class Calls:
    """The calls of roots that have begun and not ended, in one rank."""

    def __init__(self) -> None:
        self._open: list[Root] = []

    @property
    def root(self) -> Root | None:
        """The root that is called now; None outside of every call."""
        return self._open[-1] if self._open else None

    @contextmanager
    def of(self, root: Root | None) -> Iterator[None]:
        """Around one call, with or without gradients; None for a module that is no root's."""
        if root is None:
            yield
            return
        self._open.append(root)
        try:
            yield
        finally:
            self._open.pop()
