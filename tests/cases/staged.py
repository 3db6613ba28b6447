"""Steps that each begin from a state of their own, so that runs in different formats compare.

torchrun --standalone --nproc-per-node 2 staged.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from result import numbers, report
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.norm(F.gelu(self.inner(x)))).pow(2).mean()


def main() -> None:
    dist.init_process_group("gloo")
    net = Net()
    model = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses, sums = [], []
    for step in range(6):
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.uniform_(-0.5, 0.5)
        loss = model(numbers(step, 8, 8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        sums.append(sum(p.double().sum().item() for p in net.parameters()))
    report("staged", losses=losses, sums=sums)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
