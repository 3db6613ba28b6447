"""Scripts whose kernels a plan has a say in; nothing here knows of it.

torchrun --standalone --nproc-per-node 2 ruled.py CASE
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from result import numbers, report
from torch import Tensor, library, nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(hidden)) + x)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.layers = nn.Sequential(Residual(), Residual())
        self.head = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        image = x.reshape(-1, 1, 4, 4)
        return self.head(self.layers(torch.relu(self.stem(image))).mean((2, 3)))


def train(model: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        loss = model(numbers(step, 8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def gpt() -> None:
    report("gpt", losses=train(torch.compile(DDP(Gpt()))))


def resnet() -> None:
    report("resnet", losses=train(torch.compile(DDP(ResNet()))))


@library.custom_op("caselib::bare", mutates_args=())
def bare(x: Tensor) -> Tensor:
    """Twice its input; nobody told the compiler what shape that has."""
    return x * 2


@library.custom_op("caselib::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    """Laid out column by column, which its fake does not say."""
    return (x * 2).t().contiguous().t()


@turned.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


for _op in (bare, turned):
    _op.register_autograd(lambda context, gradient: gradient * 2)


class WithOp(nn.Module):
    def __init__(self, op: object) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 4)
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.op(torch.relu(self.before(x))))


def b096() -> None:
    """A custom op with a backward and without a fake, in the middle of a block."""
    report("b096", losses=train(DDP(WithOp(bare))))


def b098() -> None:
    """A custom op whose real output has other strides than its fake."""
    report("b098", losses=train(torch.compile(DDP(WithOp(turned)))))


CASES = {case.__name__: case for case in (gpt, resnet, b096, b098)}


def main() -> None:
    dist.init_process_group("gloo")
    torch._dynamo.config.optimize_ddp = False
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        CASES[name]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
