"""A byte-level GPT on the source text of the Python standard library: plain PyTorch, data parallel.

    torchrun --standalone --nproc-per-node 2 train.py                          # 0.8 M parameters
    torchrun --standalone --nproc-per-node 2 train.py --layers 8 --dim 320 --heads 5 \\
        --length 128 --batch 8                                                 # 10 M parameters
    python train.py                                                            # one process

Every byte is a token; the output layer shares its weight with the token embedding. Rank 0 prints
the training loss as it goes, the loss on held-out text in bits per byte, and a short sample.
"""

from __future__ import annotations

import argparse
import math
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BYTES = 256
PROMPT = b"def "


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each on a normalised copy, each added back."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes to logits of the next byte; `tok` is both the embedding and the output layer."""

    def __init__(self, layers: int, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self.tok = nn.Embedding(BYTES, dim)
        self.pos = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if residual else 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tok.weight)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="bytes of context")
    parser.add_argument("--batch", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--megabytes", type=int, default=8, help="how much source text to read")
    parser.add_argument("--sample", type=int, default=200, help="bytes to write at the end")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load(megabytes: int) -> tuple[Tensor, Tensor]:
    """Source text of the standard library as bytes: nine tenths to train on, one tenth held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        text += path.read_bytes()
        if len(text) >= megabytes * 10**6:
            break
    data = torch.frombuffer(text, dtype=torch.uint8)
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


def draw(data: Tensor, batch: int, length: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows of the text, and the same windows one byte later."""
    starts = torch.randint(len(data) - length - 1, (batch, 1), generator=rng)
    window = data[starts + torch.arange(length + 1)].long()
    return window[:, :-1], window[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def held_out(gpt: GPT, data: Tensor, args: argparse.Namespace) -> float:
    """Bits per byte on text that was not trained on."""
    rng = torch.Generator().manual_seed(args.seed)
    losses = [loss_of(gpt, *draw(data, args.batch, args.length, rng)) for _ in range(10)]
    return torch.stack(losses).mean().item() / math.log(2)


@torch.no_grad()
def write(gpt: GPT, count: int, length: int) -> str:
    """Continue the prompt, one byte at a time."""
    text = torch.tensor([list(PROMPT)])
    for _ in range(count):
        chances = (gpt(text[:, -length:])[:, -1] / 0.8).softmax(1)
        text = torch.cat([text, chances.multinomial(1)], dim=1)
    return bytes(text[0].tolist()).decode(errors="replace")


def main() -> None:
    args = parse()
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)

    torch.manual_seed(args.seed)
    train, rest = load(args.megabytes)
    rng = torch.Generator().manual_seed(args.seed * world + rank)
    gpt = GPT(args.layers, args.dim, args.heads, args.length)
    model = DistributedDataParallel(gpt) if distributed else gpt
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.steps, pct_start=0.1)
    if rank == 0:
        size = sum(parameter.numel() for parameter in gpt.parameters()) / 1e6
        print(f"{size:.2f} M parameters, {len(train) / 1e6:.1f} MB of text", flush=True)

    for step in range(1, args.steps + 1):
        loss = loss_of(model, *draw(train, args.batch, args.length, rng))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if rank == 0 and (step == 1 or step % 50 == 0):
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)

    if rank == 0:
        gpt.eval()
        print(f"held out {held_out(gpt, rest, args):.3f} bits per byte", flush=True)
        print(write(gpt, args.sample, args.length), flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
