"""When does DDP reduce? Six uses of forward and backward, and whether the gradients were reduced.

torchrun --standalone --nproc-per-node 2 arming.py [--compile]
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from result import gradients, numbers, report, same_on_all_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


class Forked(nn.Module):
    """Goes on to the head or ends before it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, to_the_head: bool) -> torch.Tensor:
        return self.net(x) if to_the_head else self.net.get_submodule("body")(x)


def forward_outside_backward_inside(model: nn.Module, ddp: DistributedDataParallel) -> None:
    loss = model(numbers(1, 4, 7)).pow(2).mean()
    with ddp.no_sync():
        loss.backward()


def forward_inside_backward_outside(model: nn.Module, ddp: DistributedDataParallel) -> None:
    with ddp.no_sync():
        loss = model(numbers(1, 4, 7)).pow(2).mean()
    loss.backward()


def past_the_wrapper(model: nn.Module, ddp: DistributedDataParallel) -> None:
    ddp.module(numbers(1, 4, 7)).pow(2).mean().backward()


def past_the_wrapper_after_a_step(model: nn.Module, ddp: DistributedDataParallel) -> None:
    model(numbers(1, 4, 7)).pow(2).mean().backward()
    ddp.zero_grad()
    ddp.module(numbers(2, 4, 7)).pow(2).mean().backward()


def only_a_penalty(model: nn.Module, ddp: DistributedDataParallel) -> None:
    scale = 1.0 + dist.get_rank()
    (scale * sum(parameter.pow(2).sum() for parameter in ddp.parameters())).backward()


def armed_by_autograd_grad(model: nn.Module, ddp: DistributedDataParallel) -> None:
    loss = model(numbers(1, 4, 7)).pow(2).mean()
    torch.autograd.grad(loss, list(ddp.parameters()))
    ddp.module(numbers(2, 4, 7)).pow(2).mean().backward()


def only_one_rank_goes_past(model: nn.Module, ddp: DistributedDataParallel) -> None:
    """One rank has a backward more than the other; nobody may wait for it."""
    model(numbers(1, 4, 7)).pow(2).mean().backward()
    if dist.get_rank() == 0:
        ddp.module(numbers(2, 4, 7)).pow(2).mean().backward()


def accumulated_where_only_one_rank_goes(model: nn.Module, ddp: DistributedDataParallel) -> None:
    """A gradient that a rank has and does not reach now is sent all the same."""
    wide = DistributedDataParallel(Forked(ddp.module), find_unused_parameters=True)
    with wide.no_sync():
        wide(numbers(1, 4, 7), True).pow(2).mean().backward()
    wide(numbers(2, 4, 7), dist.get_rank() == 0).pow(2).mean().backward()


CASES = (
    forward_outside_backward_inside,
    forward_inside_backward_outside,
    past_the_wrapper,
    past_the_wrapper_after_a_step,
    only_a_penalty,
    armed_by_autograd_grad,
    only_one_rank_goes_past,
    accumulated_where_only_one_rank_goes,
)


def main() -> None:
    dist.init_process_group("gloo")
    torch._dynamo.config.optimize_ddp = False
    for case in CASES:
        torch.manual_seed(0)
        ddp = DistributedDataParallel(Net())
        model = torch.compile(ddp) if "--compile" in sys.argv else ddp
        case(model, ddp)
        report(case.__name__, reduced=same_on_all_ranks(ddp), gradients=gradients(ddp))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
