"""One store of finished jobs for the whole session."""

from __future__ import annotations

import pytest

from .ways import Runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("numerics"))
