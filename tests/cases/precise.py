"""Trains a small model that computes in fp16 inside, or has 16-bit parameters, step by step.

torchrun --standalone --nproc-per-node 2 precise.py CASE [options]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from result import numbers, report
from torch import nn
from torch.nn.functional import linear
from torch.nn.parallel import DistributedDataParallel


class Half(nn.Module):
    """The first layer computes in fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        body = self.body
        hidden = linear(x.half(), body.weight.half(), body.bias.half())
        return self.head(torch.relu(hidden.float()))


class Own(nn.Module):
    """Follows the format of its parameters, whatever it is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.body(x.to(self.body.weight.dtype)))
        return self.head(hidden).float()


class Plain(nn.Module):
    """Takes float inputs, as most models do; one of its layers is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(7, 5)
        self.fixed = nn.Linear(5, 5).requires_grad_(False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.fixed(self.body(x)))).float()


def main() -> None:
    args = arguments()
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    torch.manual_seed(numbers_rank() if args.own_seed else 0)
    model: nn.Module = {"half": Half, "own": Own, "plain": Plain}[args.model]()
    if args.low:
        model = model.to(getattr(torch, args.low))
    kept = None if args.load is None else torch.load(args.load)
    if kept is not None:
        model.load_state_dict(kept["model"])
    ddp = DistributedDataParallel(model) if distributed else model
    if args.by_hand:
        by_hand(ddp, args)
        return
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01, fused=True)
    if kept is not None:
        optimizer.load_state_dict(kept["optimizer"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9 ** (n + args.first))
    scaler = torch.amp.GradScaler("cpu", enabled=args.scaler and not args.late)
    seen: dict[str, list[Any]] = {"lr": [], "norm": [], "moved": []}
    for step in range(args.first, args.first + args.steps):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss = ddp(numbers(step, 4, 7)).pow(2).mean()
        if step in args.overflow and numbers_rank() == args.overflow_rank:
            loss = loss * args.overflow_by
        if step == args.first and args.late:
            scaler = torch.amp.GradScaler("cpu", enabled=args.scaler)
        scaler.scale(loss).backward()
        if args.clip:
            norm = nn.utils.clip_grad_norm_(ddp.parameters(), args.clip)
            seen["norm"].append(str(norm.item()))
        stays = step in args.leave_out
        if not stays:
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        seen["lr"].append(optimizer.param_groups[0]["lr"])
        seen["moved"].append(
            any(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))
        )
    if args.save and (args.save_each or numbers_rank() == 0):
        file = f"{numbers_rank()}-{args.save}" if args.save_each else args.save
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    states = [optimizer.state[p] for p in model.parameters() if p.requires_grad]
    report(
        args.case,
        **seen,
        parameters=[v for p in model.parameters() for v in p.double().flatten().tolist()],
        moments=[v for s in states for v in s["exp_avg"].double().flatten().tolist()],
        counted=[s["step"].item() for s in states],
        formats=[str(p.dtype) for p in model.parameters()],
    )
    if distributed:
        dist.destroy_process_group()


def by_hand(model: nn.Module, args: argparse.Namespace) -> None:
    """Descends without an optimizer."""
    for step in range(args.steps):
        model(numbers(step, 4, 7)).pow(2).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    report(
        args.case, parameters=[v for p in model.parameters() for v in p.double().flatten().tolist()]
    )
    if dist.is_initialized():
        dist.destroy_process_group()


def numbers_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--model", choices=("half", "own", "plain"), default="half")
    parser.add_argument("--low", help="the script's own format of parameters")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--overflow", type=int, nargs="*", default=[])
    parser.add_argument("--overflow-rank", type=int, default=1)
    parser.add_argument("--overflow-by", type=float, default=1e36)
    parser.add_argument("--own-seed", action="store_true", help="each rank draws its own model")
    parser.add_argument("--by-hand", action="store_true", help="without an optimizer")
    parser.add_argument("--leave-out", type=int, nargs="*", default=[])
    parser.add_argument("--clip", type=float)
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--late", action="store_true", help="the scaler is built in the first step")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--save-each", action="store_true", help="in a file for each rank")
    parser.add_argument("--load", type=Path)
    return parser.parse_args()


main()
