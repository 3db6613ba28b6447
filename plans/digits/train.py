"""Handwritten digits with a small convolutional net: plain PyTorch, data parallel.

    torchrun --standalone --nproc-per-node 2 train.py      # two CPU ranks
    python train.py                                        # one process

The images are scikit-learn's copy of the UCI digits (1,797 real 8x8 scans), a fifth of them held
out. Rank 0 prints the loss of every epoch and the accuracy on the held-out images at the end.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class DigitNet(nn.Module):
    """Three convolutions with BatchNorm, then a linear classifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            self._block(1, width),
            self._block(width, 2 * width),
            nn.MaxPool2d(2),
            self._block(2 * width, 4 * width),
        )
        self.classify = nn.Linear(4 * width, 10)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images).mean((2, 3)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--width", type=int, default=16, help="channels of the first convolution")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load(seed: int) -> tuple[TensorDataset, Tensor, Tensor]:
    """The training set, and the held-out images with their labels."""
    digits = load_digits()
    parts = train_test_split(
        digits.images, digits.target, test_size=0.2, random_state=seed, stratify=digits.target
    )
    train_x, test_x = (torch.tensor(part, dtype=torch.float32)[:, None] / 16 for part in parts[:2])
    train_y, test_y = (torch.tensor(part) for part in parts[2:])
    return TensorDataset(train_x, train_y), test_x, test_y


def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    net.eval()
    with torch.no_grad():
        return (net(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    args = parse()
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)

    torch.manual_seed(args.seed)
    train, test_images, test_labels = load(args.seed)
    sampler = DistributedSampler(train, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler)

    net = DigitNet(args.width)
    model = DistributedDataParallel(net) if distributed else net
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=steps)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch + 1:2d}  loss {total / len(loader):.4f}", flush=True)

    if rank == 0:
        share = accuracy(net, test_images, test_labels)
        print(f"test accuracy {share:.2%} of {len(test_labels)} images", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
