"""Small scripts that users of neighbouring tools reported; each trains a little and reports.

torchrun --standalone --nproc-per-node 2 faults.py CASE
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from result import gradients, numbers, report
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def fit(model: nn.Module, steps: int, lr: float = 0.1, size: int = 4) -> list[float]:
    """A usual loop on random vectors of 16; returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for step in range(steps):
        loss = model(numbers(step, size, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.used, self.unused = nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.body(x))
        return self.used(x), self.unused(x)


def b004() -> None:
    """Two heads, one of them used, under a graph declared static: stock refuses step 2."""
    model = DDP(TwoHeads(), static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, failure = [], ""
    try:
        for step in range(4):
            loss = model(numbers(step, 4, 16))[0].pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    except RuntimeError as error:
        failure = str(error).split(".")[0]
    report("b004", losses=losses, failure=failure)


class DropBlock(nn.Module):
    """A block that is left out with some probability, decided by its own generator."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.chance = chance

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.chance and torch.rand(()).item() < self.chance:
            return x
        return x + torch.tanh(self.linear(x))


class BrokenChain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DropBlock(chance) for chance in (0.0, 0.1, 0.0, 0.1))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return x


def b006() -> None:
    """Equal blocks of different drop probability with graph breaks between them."""
    torch.manual_seed(1)
    model = DDP(BrokenChain(), find_unused_parameters=True)
    report("b006", losses=fit(torch.compile(model), 6))


class Saved(nn.Module):
    """Activations of every block are computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def b008() -> None:
    """More than three buckets, recomputed activations, float64: gradients against one process."""
    torch.set_default_dtype(torch.float64)
    module = Saved()
    alone = copy.deepcopy(module)
    model = torch.compile(DDP(module, bucket_cap_mb=0.004))
    model(numbers(0, 4, 16)).pow(2).mean().backward()
    alone(numbers(0, 4, 16)).pow(2).mean().backward()
    for parameter in alone.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    pairs = zip(module.parameters(), alone.parameters(), strict=True)
    worst = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
    report("b008", worst=worst)


def b010() -> None:
    """103 samples in batches of 16, the last of 7, two epochs, compiled."""
    data = TensorDataset(numbers(0, 103, 16))
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for (x,) in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            loss = compiled(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    report("b010", losses=losses)


def _discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.LeakyReLU(), nn.Linear(24, 1))


def b012() -> None:
    """A discriminator with BatchNorm called on real, then fake, before one backward."""
    model = DDP(_discriminator())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, failure = [], ""
    try:
        for step in range(4):
            real, fake = model(numbers(step, 8, 16)), model(numbers(step + 50, 8, 16))
            loss = F.softplus(-real).mean() + F.softplus(fake).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    except RuntimeError as error:
        failure = str(error).split(":")[0]
    report("b012", losses=losses, failure=failure)


def b014() -> None:
    """The plan asks for whole graphs; the wrapper itself is Python that no graph can hold."""
    model = DDP(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)))
    report("b014", losses=fit(model, 3))


class Decided(nn.Module):
    """An exception raised inside forward decides the path."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        try:
            scale = self.missing if self.calls % 2 else _overflow()
        except AttributeError:
            scale = 2.0
        except OverflowError:
            scale = 3.0
        return scale * self.linear(x)


def _overflow() -> float:
    raise OverflowError("too large")


def b101() -> None:
    report("b101", losses=fit(DDP(Decided()), 4, lr=0.01))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Managed(nn.Module):
    """A forward inside context managers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = torch.tanh(self.first(x))
        with _quiet():
            return self.second(x)


def b103() -> None:
    report("b103", losses=fit(DDP(Managed()), 3))


def b105() -> None:
    """A forward hook that is registered at step 5."""
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model = DDP(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fired, losses = [], []
    for step in range(8):
        if step == 5:
            module[0].register_forward_hook(lambda *_: fired.append(step))  # noqa: B023
        loss = model(numbers(step, 4, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report("b105", losses=losses, fired=fired)


def b107() -> None:
    """A GAN: the fake batch is used for the discriminator (detached), then for the generator."""
    make = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16))
    judge = nn.Sequential(nn.Linear(16, 24), nn.LeakyReLU(), nn.Linear(24, 1))
    g, d = DDP(make), DDP(judge)
    g_step, d_step = (torch.optim.Adam(net.parameters(), lr=1e-3) for net in (g, d))
    losses = []
    for step in range(5):
        fake = g(numbers(step + 50, 6, 8))
        d_step.zero_grad()
        d_loss = F.softplus(-d(numbers(step, 6, 16))).mean() + F.softplus(d(fake.detach())).mean()
        d_loss.backward()
        d_step.step()
        g_step.zero_grad()
        g_loss = F.softplus(-d(fake)).mean()
        g_loss.backward()
        g_step.step()
        losses += [d_loss.item(), g_loss.item()]
    report("b107", losses=losses, gradients=[*gradients(g), *gradients(d)])


class Lengths(nn.Module):
    """Takes any length; a branch depends on the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.extra = nn.Linear(16, 16), nn.Linear(16, 16)
        self.branch = dist.get_rank() == 1

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        return (self.extra(x) * 2 if self.branch else torch.tanh(self.extra(x))).mean(1)


def different_graphs() -> None:
    """Ranks see other lengths and take other branches."""
    model = DDP(Lengths())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        loss = model(numbers(step, 4, 8 + dist.get_rank(), 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report("different_graphs", losses=losses, gradients=gradients(model))


def one_rank_on_hooks() -> None:
    """A penalty outside the module on one rank only: its gradients have a second way in."""
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        loss = model(numbers(step, 4, 16)).pow(2).mean()
        if dist.get_rank() == 1:
            loss = loss + 1e-2 * sum(parameter.pow(2).sum() for parameter in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report("one_rank_on_hooks", losses=losses, gradients=gradients(model))


def b016() -> None:
    """Rank 0 has five batches, rank 1 four; nobody joins."""
    model = DDP(nn.Linear(16, 4))
    fit(model, 5 - dist.get_rank())
    dist.barrier()


CASES = {
    case.__name__: case
    for case in (
        b004, b006, b008, b010, b012, b014, b016, b101, b103, b105, b107,
        different_graphs, one_rank_on_hooks,
    )
}  # fmt: skip


def main() -> None:
    dist.init_process_group("gloo")
    torch._dynamo.config.optimize_ddp = False
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        CASES[name]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
