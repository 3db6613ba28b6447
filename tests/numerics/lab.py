"""What a numeric case works with: data of one rank and step, DDP models, a place for results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


@dataclass(slots=True)
class Lab:
    """One case in one rank.

    Attributes:
        compiled: whether the script compiles its models.
        gradients: of the first step, before the optimizer.
        weights: parameters and buffers after the last step.
        losses: of every step.
    """

    compiled: bool
    rank: int = field(default_factory=dist.get_rank)
    world: int = field(default_factory=dist.get_world_size)
    models: list[nn.Module] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    def ddp(self, module: nn.Module, **options: Any) -> Any:
        """The module under DDP, compiled when the script compiles."""
        model = DistributedDataParallel(module, **options)
        self.models.append(model)
        return torch.compile(model) if self.compiled else model

    def numbers(self, step: int, *shape: int) -> Tensor:
        """Inputs that differ between ranks and steps."""
        return torch.randn(*shape, generator=self._rng(step))

    def classes(self, step: int, limit: int, *shape: int) -> Tensor:
        """Labels or tokens below `limit`."""
        return torch.randint(limit, shape, generator=self._rng(step))

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        """The usual end of a step."""
        loss.backward()
        self.note(loss)
        optimizer.step()
        optimizer.zero_grad()

    def note(self, loss: Tensor) -> None:
        """Keep the loss, and the gradients when this is the first step."""
        self.losses.append(loss.item())
        if not self.gradients:
            self.gradients = {
                f"{number}.{name}": parameter.grad.clone()
                for number, model in enumerate(self.models)
                for name, parameter in model.module.named_parameters()
                if parameter.grad is not None
            }

    def finish(self) -> dict[str, Any]:
        """All that is compared."""
        for number, model in enumerate(self.models):
            for name, tensor in model.module.state_dict().items():
                self.weights[f"{number}.{name}"] = tensor
        return {
            "gradients": self.gradients,
            "weights": self.weights,
            "losses": self.losses,
            "models": len(self.models),
        }

    def _rng(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * step + self.rank)
