"""Roots of every kind that a capture can lose: each trains three steps and reports its losses.

torchrun --standalone --nproc-per-node 1 capture.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from result import numbers, report
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Forward = Callable[[Tensor], Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 16)

    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encode(x))


# One class a case: the events of a run name roots by class.
class CompiledFirst(Net): ...


class CompiledAgain(Net): ...


class CompiledForward(Net): ...


class HookedLate(Net): ...


class Encoded(Net): ...


class Opaque(Net): ...


def ddp(module: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(module)


def train(name: str, model: nn.Module, forward: Forward | None = None, **more: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        loss = (forward or model)(numbers(step, 2, 4, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report(name, losses=losses, **more)


def sequential() -> None:
    train("sequential", ddp(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 16))))


def linear() -> None:
    train("linear", ddp(nn.Linear(16, 16)))


def transformer_encoder() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    train("transformer_encoder", ddp(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)))


def compile_then_ddp() -> None:
    train("compile_then_ddp", ddp(torch.compile(CompiledFirst())))


def compile_again_after_ddp() -> None:
    model = ddp(CompiledAgain())
    model.module.compile()
    train("compile_again_after_ddp", model)


def forward_compiled_after_ddp() -> None:
    model = ddp(CompiledForward())
    model.module.forward = torch.compile(model.module.forward)
    train("forward_compiled_after_ddp", model)


def hook_added_late() -> None:
    """The hook must fire from its registration on."""
    module = HookedLate()
    model = ddp(module)
    calls: list[int] = []

    def forward(x: Tensor) -> Tensor:
        if forward.step == 1:
            module.body.register_forward_hook(lambda *_: calls.append(forward.step))
        result = model(x)
        forward.step += 1
        return result

    forward.step = 0
    train("hook_added_late", model, forward)
    report("hook_added_late_calls", calls=calls)


def other_method() -> None:
    """`encode` past the wrapper: it trains on local gradients, as under stock DDP."""
    model = ddp(Encoded())
    train("other_method", model, lambda x: model(x) + model.module.encode(x))


def opaque_forward() -> None:
    """A wrapper that a compiler cannot see through."""
    module = Opaque()
    inner = module.forward

    @torch.compiler.disable
    @functools.wraps(inner)
    def forward(*args: Tensor) -> Tensor:
        return inner(*args)

    module.forward = forward
    train("opaque_forward", ddp(module))


CASES = (
    sequential,
    linear,
    transformer_encoder,
    compile_then_ddp,
    compile_again_after_ddp,
    forward_compiled_after_ddp,
    hook_added_late,
    other_method,
    opaque_forward,
)


def main() -> None:
    dist.init_process_group("gloo")
    torch._dynamo.config.optimize_ddp = False
    for case in CASES:
        torch.manual_seed(0)
        case()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
