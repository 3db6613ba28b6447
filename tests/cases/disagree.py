"""Ranks that build different models: what would hang or train garbage without a check.

torchrun --standalone --nproc-per-node 2 disagree.py order|shape|dtype
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from result import numbers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Two layers of equal shape, so that only their order differs between ranks."""

    def __init__(self, names: tuple[str, str], width: int) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def build(what: str, odd: bool) -> Net:
    names = ("second", "first") if what == "order" and odd else ("first", "second")
    net = Net(names, 9 if what == "shape" and odd else 8)
    return net.double() if what == "dtype" and odd else net


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(build(sys.argv[1], dist.get_rank() == 1))
    parameter = next(model.parameters())
    model(numbers(0, 4, parameter.shape[1]).to(parameter.dtype)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
