"""The numeric cases: training loops as people write them, each with one thing that can go wrong.

`REQUIRED` are the cases every engine must pass; `FURTHER` are faults met elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from lab import STEPS, Lab
from models import GPT, Checkpointed, Perceptron, ResNet, TwoHeads, TwoTypes, WithLoss
from torch import nn

Case = Callable[[Lab], None]


def tied_gpt(lab: Lab) -> None:
    model = lab.ddp(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        tokens = lab.classes(step, 33, 4, 9)
        logits = model(tokens[:, :-1])
        lab.step(optimizer, F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def resnet_batchnorm(lab: Lab) -> None:
    model = lab.ddp(ResNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        logits = model(lab.numbers(step, 4, 3, 8, 8))
        lab.step(optimizer, F.cross_entropy(logits, lab.classes(step, 10, 4)))


def no_sync(lab: Lab) -> None:
    model = lab.ddp(Perceptron())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        for micro in range(3):
            with model.no_sync() if micro < 2 else nullcontext():
                loss = model(lab.numbers(3 * step + micro, 6, 33)).pow(2).mean() / 3
                loss.backward()
        lab.note(loss)
        optimizer.step()
        optimizer.zero_grad()


def sync_flag(lab: Lab) -> None:
    model = lab.ddp(Perceptron())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        for micro in range(3):
            model.require_backward_grad_sync = micro == 2
            loss = model(lab.numbers(3 * step + micro, 6, 33)).pow(2).mean() / 3
            loss.backward()
        lab.note(loss)
        optimizer.step()
        optimizer.zero_grad()


def find_unused(lab: Lab) -> None:
    model = lab.ddp(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        both = lab.rank == 0 or step % 3 == 2
        lab.step(optimizer, model(lab.numbers(step, 6, 33), both).pow(2).mean())


def called_twice(lab: Lab) -> None:
    model = lab.ddp(Perceptron())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        first, second = model(lab.numbers(step, 6, 33)), model(lab.numbers(step + 100, 6, 33))
        lab.step(optimizer, (first - second).pow(2).mean())


def outside_penalty(lab: Lab) -> None:
    model = lab.ddp(Perceptron())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        penalty = sum(parameter.pow(2).sum() for parameter in model.parameters())
        lab.step(optimizer, model(lab.numbers(step, 6, 33)).pow(2).mean() + 1e-3 * penalty)


def clip_grad_norm(lab: Lab) -> None:
    model = lab.ddp(Perceptron())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        loss = model(lab.numbers(step, 6, 33)).pow(2).mean()
        loss.backward()
        lab.note(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


def grad_scaler(lab: Lab) -> None:
    """bf16 autocast and a scaler; one rank's loss is infinite once, so both must skip that step."""
    model = lab.ddp(Perceptron())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(lab.numbers(step, 6, 33)).float().pow(2).mean()
        if step == 4 and lab.rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        lab.note(loss)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 32.0


def zero_grad_keep(lab: Lab) -> None:
    model = lab.ddp(GPT())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        tokens = lab.classes(step, 33, 4, 9)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        lab.note(loss)
        optimizer.step()


def parameter_hooks(lab: Lab) -> None:
    module = Perceptron()
    module.layers[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    module.layers[1].bias.register_hook(lambda grad: grad * 0.5)
    model = lab.ddp(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        lab.step(optimizer, model(lab.numbers(step, 6, 33)).pow(2).mean())


def two_models(lab: Lab) -> None:
    """Equal classes, so that a compiler may share code between them; now apart, now together."""
    models = [lab.ddp(Perceptron()), lab.ddp(Perceptron())]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
    for step in range(STEPS):
        x = lab.numbers(step, 6, 33)
        losses = [model(x * (1 + n)).pow(2).mean() for n, model in enumerate(models)]
        if step % 2:
            sum(losses).backward()
        else:
            for loss in losses:
                loss.backward()
        lab.note(losses[0])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def smaller_last_batch(lab: Lab) -> None:
    model = lab.ddp(ResNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        size = 3 if step % 4 == 3 else 5
        logits = model(lab.numbers(step, size, 3, 8, 8))
        lab.step(optimizer, F.cross_entropy(logits, lab.classes(step, 10, size)))


def static_graph(lab: Lab) -> None:
    """B002: a graph declared static, and accumulation (stock DDP must sync the very first step)."""
    model = lab.ddp(Perceptron(), static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS // 2):
        for micro in range(4):
            with model.no_sync() if step and micro < 3 else nullcontext():
                loss = model(lab.numbers(4 * step + micro, 6, 33)).pow(2).mean() / 4
                loss.backward()
        lab.note(loss)
        optimizer.step()
        optimizer.zero_grad()


def checkpointed(lab: Lab) -> None:
    """B008: several small buckets, activations recomputed in backward."""
    model = lab.ddp(Checkpointed(), bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        lab.step(optimizer, model(lab.numbers(step, 6, 32)).pow(2).mean())


def channels_last(lab: Lab) -> None:
    model = lab.ddp(ResNet().to(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        images = lab.numbers(step, 4, 3, 8, 8).to(memory_format=torch.channels_last)
        lab.step(optimizer, F.cross_entropy(model(images), lab.classes(step, 10, 4)))


def frozen_parameters(lab: Lab) -> None:
    module = GPT()
    module.pos.weight.requires_grad_(False)
    module.blocks[0].requires_grad_(False)
    model = lab.ddp(module)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step in range(STEPS):
        lab.step(optimizer, model(lab.classes(step, 33, 4, 8)).pow(2).mean())


def two_dtypes(lab: Lab) -> None:
    model = lab.ddp(TwoTypes())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        lab.step(optimizer, model(lab.numbers(step, 6, 33)).pow(2).mean())


def evaluates(lab: Lab) -> None:
    """Evaluation under no_grad between steps, through the wrapper and past it."""
    model = lab.ddp(ResNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        logits = model(lab.numbers(step, 4, 3, 8, 8))
        lab.step(optimizer, F.cross_entropy(logits, lab.classes(step, 10, 4)))
        if step % 3 == 2:
            model.eval()
            with torch.no_grad():
                lab.losses.append(lab.models[0].module(lab.numbers(0, 4, 3, 8, 8)).sum().item())
                lab.losses.append(model(lab.numbers(1, 4, 3, 8, 8)).sum().item())
            model.train()


def hand_written_update(lab: Lab) -> None:
    model = lab.ddp(Perceptron())
    for step in range(STEPS):
        loss = model(lab.numbers(step, 6, 33)).pow(2).mean()
        loss.backward()
        lab.note(loss)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


def gradient_views(lab: Lab) -> None:
    model = lab.ddp(Perceptron(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        lab.step(optimizer, model(lab.numbers(step, 6, 33)).pow(2).mean())


def dropout(lab: Lab) -> None:
    torch.manual_seed(lab.rank)
    model = lab.ddp(Perceptron(dropout=0.2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        lab.step(optimizer, model(lab.numbers(step, 6, 33)).pow(2).mean())


def moving_average(lab: Lab) -> None:
    model = lab.ddp(Perceptron())
    average = copy.deepcopy(lab.models[0].module).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        lab.step(optimizer, model(lab.numbers(step, 6, 33)).pow(2).mean())
        for kept, live in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(live.detach(), 0.1)
    lab.weights |= {f"average.{name}": value for name, value in average.state_dict().items()}


def loss_inside(lab: Lab) -> None:
    model = lab.ddp(WithLoss())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        result = model(lab.numbers(step, 6, 33), labels=lab.classes(step, 5, 6))
        lab.step(optimizer, result["loss"])


def communication_hook(lab: Lab) -> None:
    """A hook of the script on the reduction itself; it must be the one that runs."""

    def half(group, bucket):  # DDP refuses annotations that are text
        work = torch.distributed.all_reduce(bucket.buffer().div_(2 * lab.world), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model = lab.ddp(Perceptron())
    lab.models[0].register_comm_hook(None, half)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        lab.step(optimizer, model(lab.numbers(step, 6, 33)).pow(2).mean())


REQUIRED: tuple[Case, ...] = (
    tied_gpt,
    resnet_batchnorm,
    no_sync,
    sync_flag,
    find_unused,
    called_twice,
    outside_penalty,
    clip_grad_norm,
    grad_scaler,
    zero_grad_keep,
    parameter_hooks,
    two_models,
    smaller_last_batch,
)
FURTHER: tuple[Case, ...] = (
    static_graph,
    checkpointed,
    channels_last,
    frozen_parameters,
    two_dtypes,
    evaluates,
    hand_written_update,
    gradient_views,
    dropout,
    moving_average,
    loss_inside,
    communication_hook,
)
CASES: dict[str, Case] = {case.__name__: case for case in (*REQUIRED, *FURTHER)}
