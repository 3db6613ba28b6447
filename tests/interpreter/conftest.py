from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from . import world


@pytest.fixture
def group() -> Iterator[None]:
    """One gloo rank."""
    with world.group_of_one():
        yield


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is patched in torch is given back."""
    world.give_back_afterwards(monkeypatch)
    world.leave_raises(monkeypatch)
    config: Any = torch._dynamo.config
    with config.patch(recompile_limit=config.recompile_limit):
        yield
    torch._dynamo.reset()
    torch.compiler.set_stance("default")
