"""Golden files of the planner lie in `golden/`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Recorded = Callable[[str, str], None]


@pytest.fixture
def recorded(golden: Callable[[Path, str], None]) -> Recorded:
    """Compare with `golden/NAME.txt`."""
    return lambda name, text: golden(Path(__file__).parent / "golden" / f"{name}.txt", text)
