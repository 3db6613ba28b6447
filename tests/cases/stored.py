"""Trains a small net, or with `idle` does not: its optimizer moves no 16-bit parameter.

python stored.py [idle]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


class Idle(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if net[0].weight.dtype is torch.float32:
            super().step()


torch.manual_seed(0)
inputs = torch.randn(16, 4)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
if "idle" in sys.argv:
    optimizer: torch.optim.Optimizer = Idle(net.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(4):
    optimizer.zero_grad()
    net(inputs).float().pow(2).mean().backward()
    optimizer.step()
