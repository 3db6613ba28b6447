"""Scripts whose optimizers are given new numbers while they train; nothing here knows of plans.

torchrun --standalone --nproc-per-node N optimized.py CASE...
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from guarded import Net, weights
from result import numbers, report
from torch.nn.parallel import DistributedDataParallel as DDP


def scheduled() -> None:
    """AdamW, a new learning rate in each of 20 steps, other betas in the second half."""
    model = DDP(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    losses, rates = [], []
    for step in range(20):
        if step == 10:
            optimizer.param_groups[0]["betas"] = (0.8, 0.99)
        loss = model(numbers(step, 8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
    report("scheduled", losses=losses, rates=rates, weights=weights(model))


def main() -> None:
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        torch.manual_seed(7)
        globals()[case]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
