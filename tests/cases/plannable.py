"""Scripts as `sgplan plan` meets them: each leaves a file behind when it gets past its first step.

torchrun --standalone --nproc-per-node 2 plannable.py CASE
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from result import numbers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.second(x)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """One step; the file says that the parameters were changed."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = model(numbers(number, 4, 16)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    pairs = zip(before, model.parameters(), strict=True)
    changed = any(not torch.equal(old, new) for old, new in pairs)
    Path(f"stepped-{dist.get_rank()}-{number}").write_text(f"changed {changed}")


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(numbers(99, 4, 16))
    model.train()


def main() -> None:
    case = sys.argv[1]
    dist.init_process_group("gloo")
    torch._dynamo.config.optimize_ddp = False
    torch.manual_seed(0)
    model: nn.Module = DistributedDataParallel(Net(breaks=case == "graph_break"))
    if case in ("compiled", "graph_break"):
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if case == "evaluates_first":
        evaluate(model)
    for number in range(3):
        if case == "catches_exceptions":
            with contextlib.suppress(Exception):
                step(model, optimizer, number)
        elif case == "one_rank_steps" and dist.get_rank() == 1:
            model(numbers(number, 4, 16)).pow(2).mean().backward()
            dist.barrier()
        elif case == "one_rank_steps":
            step(model, optimizer, number)
            dist.barrier()
        else:
            step(model, optimizer, number)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
