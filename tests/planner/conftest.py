"""Golden files of the planner lie in `golden/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Recorded = Callable[[str, str], None]


@pytest.fixture
def recorded(golden: Callable[[Path, str], None]) -> Recorded:
    """Compare with `golden/NAME.txt`."""
    return lambda name, text: golden(Path(__file__).parent / "golden" / f"{name}.txt", text)


@pytest.fixture
def fresh_dynamo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiled code of one test is not seen by the next."""
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
