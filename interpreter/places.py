"""Lines of the script, as every message spells them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_OURS = ("torch", "sgplan", "contextlib")


def spelled_place(file: str, line: int | str) -> str:
    """`train.py:57`."""
    return f"{os.path.basename(file)}:{line}"


def script_line() -> str:
    """`train.py:57`: the innermost line that is neither torch's nor ours; empty without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _OURS and not frame.f_code.co_filename.startswith("<"):
            return spelled_place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""
