"""Scripts whose shapes, numbers and modes change from call to call; nothing here knows of plans.

torchrun --standalone --nproc-per-node N guarded.py CASE...
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from result import numbers, report
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    """A row of the result depends on the same row of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.norm(self.body(x))))


def fit(model: nn.Module, shapes: list[tuple[int, ...]], *extra: object) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, shape in enumerate(shapes):
        loss = model(numbers(step, *shape), *extra).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model: nn.Module) -> list[float]:
    return [x for p in model.parameters() for x in p.detach().flatten().tolist()]


def batches() -> None:
    """Batches of 32, then of 64, and a ragged last one, twice over."""
    model = DDP(Net())
    losses = fit(model, [(n, 16) for n in (32, 32, 64, 64, 17) * 2])
    report("batches", losses=losses, weights=weights(model))


class Masked(nn.Module):
    """Two inputs that share their length."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = torch.tanh(self.body(x)) * mask.unsqueeze(-1)
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


def lengths() -> None:
    """Sequences that grow from call to call; the first is as long as the batch is large."""
    model = DDP(Masked())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, length in enumerate((4, 5, 7, 8, 11, 16)):
        mask = (numbers(step, 4, length) > -0.5).float()
        loss = model(numbers(step, 4, length, 16), mask=mask).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report("lengths", losses=losses, weights=weights(model))


def uneven() -> None:
    """Ranks that see different shapes in one step."""
    rank = dist.get_rank()
    sizes = (8, 12, 8, 12, 8) if rank else (8, 8, 12, 8, 12)
    model = DDP(Net())
    losses = fit(model, [(n, 16) for n in sizes])
    report("uneven", losses=losses, weights=weights(model))


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.counter = 0

    def forward(self, x: Tensor) -> Tensor:
        self.counter += 1
        return super().forward(x) * self.counter


def b022() -> None:
    """A module adds 1 to an int attribute in every forward, starting at 0."""
    model = Counting()
    losses = fit(model, [(8, 16)] * 20)
    report("b022", losses=losses, counter=model.counter)


def b024() -> None:
    """Evaluate first, then train."""
    model = torch.compile(Net())
    with torch.no_grad():
        before = model(numbers(0, 8, 16)).pow(2).mean().item()
    losses = fit(model, [(8, 16)] * 6)
    with torch.no_grad():
        after = model(numbers(0, 8, 16)).pow(2).mean().item()
    report("b024", losses=losses, evaluated=[before, after])


class Keyed(nn.Module):
    def __init__(self, key: str) -> None:
        super().__init__()
        self.linear, self.key = nn.Linear(16, 16), key

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * (1 + len(self.key) / 100)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Keyed("k" * (n + 1)) for n in range(12))
        for block in self.blocks:
            block.compile()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def b026() -> None:
    """Twelve blocks with a different key each, compiled block by block."""
    model = Blocks()
    report("b026", losses=fit(model, [(8, 16)] * 3))


def b028() -> None:
    """Batch sizes 1 to 12 in turn."""
    model = torch.compile(Net())
    report("b028", losses=fit(model, [(n, 16) for n in range(1, 13)]))


class Heated(Net):
    def forward(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        return super().forward(x) / temperature


def b030() -> None:
    """A float argument that falls by 0.05 in every step."""
    model = torch.compile(Heated())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(8):
        loss = model(numbers(step, 8, 16), temperature=2.0 - 0.05 * step).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report("b030", losses=losses)


class WithLoss(Net):
    def forward(self, x: Tensor, target: Tensor, delta: float) -> Tensor:
        return F.huber_loss(super().forward(x), target, delta=delta)


def b032() -> None:
    """A loss with a threshold that follows a schedule."""
    model = torch.compile(WithLoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, delta in enumerate((1.0, 0.8, 0.5, 0.3, 0.2, 0.1)):
        loss = model(numbers(step, 8, 16) * 3, numbers(step + 1, 8, 4), delta)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report("b032", losses=losses)


class Dropped(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5, self.training))


def modes() -> None:
    """Training and evaluation in turns, an optimizer whose rate changes."""
    net = Dropped()
    model = torch.compile(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    losses, eager = [], []
    for step in range(6):
        model.train(step % 2 == 0)
        loss = model(numbers(step, 8, 16)).pow(2).mean()
        if not model.training:
            losses.append(loss.item())
            eager.append(net(numbers(step, 8, 16)).pow(2).mean().item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    report("modes", losses=losses, eager=eager)


class Mixing(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def mixing() -> None:
    """Rows that depend on each other."""
    report("mixing", losses=fit(DDP(Mixing()), [(8, 16), (8, 16), (5, 16)]))


def classes() -> None:
    """A loss inside the model."""

    class Classifier(Net):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(super().forward(x), labels)

    model = DDP(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, size in enumerate((8, 8, 5, 8, 3)):
        labels = (numbers(step, size) > 0).long()
        loss = model(numbers(step, size, 16), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report("classes", losses=losses, weights=weights(model))


class Numbered(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(len([0] * x.shape[0]))


def numbered() -> None:
    """The number of rows is a number of the code."""
    report("numbered", losses=fit(DDP(Numbered()), [(8, 16), (5, 16)]))


def types() -> None:
    """The second batch has another type, and so has the model by then."""
    model = Net()
    losses = fit(model, [(8, 16)])
    model.double()
    losses.append(model(numbers(1, 8, 16).double()).mean().item())
    report("types", losses=losses)


def main() -> None:
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        torch.manual_seed(7)
        globals()[case]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
