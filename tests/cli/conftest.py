from __future__ import annotations

from pathlib import Path

import pytest

from .sandbox import Sandbox, make


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return make(tmp_path)
