"""The file that `-o` names: where it cannot be written is said before a job runs for it."""

from __future__ import annotations

import os
from pathlib import Path

from sgplan.failure import Failure


def require_place(output: str | None) -> None:
    """Refuse a file whose folder is missing or read-only.

    Raises:
        Failure: with the folder's name.
    """
    if output is None:
        return
    folder = Path(output).parent
    if not folder.is_dir():
        raise Failure(f"`{output}` cannot be written: there is no folder `{folder}`")
    if Path(output).is_dir():
        raise Failure(f"`{output}` cannot be written: it is a folder")
    if not os.access(folder, os.W_OK):
        raise Failure(f"`{output}` cannot be written: `{folder}` is read-only")
