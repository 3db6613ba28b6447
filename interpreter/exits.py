"""How a script ends that raises nothing else: by its last line, or with a status.

`atexit` is not told a status. What `sys.exit`, `exit` and `quit` were asked for is kept here, and
whether one of them ended the script is read off the frame of its module: of one that returned, the
last instruction is a return. A status that the script raises by itself (`raise SystemExit(3)`) is
not known.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

UNKNOWN = "a status that is not known"


class Exits:
    """Of this process, from the call of `install` on, which the script's module is in the midst of.

    What is patched does the same as before.
    """

    def __init__(self) -> None:
        self._asked: list[Any] = []
        self._module: FrameType | None = None

    def install(self) -> None:
        self._module = _main_module(sys._getframe())
        sys.exit = self._told(sys.exit)
        for name in ("exit", "quit"):  # of `site`, which may have been left out
            if (known := getattr(builtins, name, None)) is not None:
                setattr(builtins, name, self._told(known))

    def _told(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def exit(*args: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                self._asked[:] = args[:1] or [None]
            return original(*args)

        return exit

    def words(self) -> str:
        """`status 3`, with the message where that was the status; empty for a good end."""
        if self._module is not None and _has_returned(self._module):
            return ""
        if not self._asked:
            return "" if self._module is None else UNKNOWN
        (asked,) = self._asked
        if asked is None:
            return ""
        if isinstance(asked, int):
            return f"status {int(asked)}" if asked else ""
        return f"status 1: {asked}"  # Python prints what is no number


def _main_module(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return frame
        frame = frame.f_back
    return None


def _has_returned(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
