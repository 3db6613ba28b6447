"""Text that must equal a file beside the tests; `UPDATE_GOLDEN=1` rewrites the file."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent / "golden"


def check(name: str, text: str) -> None:
    """Compare with `golden/NAME.txt`."""
    path = HERE / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing: run with UPDATE_GOLDEN=1 and read it"
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs"
