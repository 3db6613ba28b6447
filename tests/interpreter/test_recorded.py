"""What a verified run keeps of settings, and when it says that a value has moved."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD

from sgplan.interpreter import recorded


def test_a_function_among_the_settings_is_the_same_in_another_run() -> None:
    def settings() -> object:
        group = {"params": [torch.ones(1)], "schedule": lambda step: 1.0, "thing": object()}
        return recorded.settings(SGD([group], lr=0.1))

    kept = []  # so that no address is used again
    for _ in range(2):
        kept.append(settings())
    assert kept[0] == kept[1]
    assert "test_a_function_among_the_settings" in str(kept[0])


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), False),
        (torch.tensor([1.0, torch.nan]), torch.tensor([2.0, torch.nan]), True),
        (torch.tensor([1.0, torch.nan]), torch.tensor([torch.nan, torch.nan]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), True),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), True),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.bfloat16), True),
        (torch.tensor([1.0]), None, True),
    ],
)
def test_what_differs(before: torch.Tensor, now: torch.Tensor | None, moved: bool) -> None:
    assert recorded.differing({"w": before}, {"w": now}) == (["w"] if moved else [])
