"""The models that are timed: a GPT, ResNet-50 and a mixer, and a batch for each.

Plain PyTorch. Sizes are fixed here so that figures of different days can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LENGTH, VOCABULARY = 128, 256


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """8 layers, d 320, 5 heads, length 128, bytes, tied: 10 M parameters."""

    def __init__(self, layers: int = 8, dim: int = 320, heads: int = 5) -> None:
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, dim)
        self.pos = nn.Embedding(LENGTH, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tok.weight)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with BatchNorm, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1), nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride), nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1),
        )  # fmt: skip
        projected = stride != 1 or inputs != outputs
        self.skip = (
            nn.Sequential(*_convolution(inputs, outputs, 1, stride)) if projected else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x), inplace=True)


class ResNet50(nn.Module):
    """He et al. 2015, layers 3-4-6-3, stride in the 3x3: 25.6 M parameters."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        blocks, inputs = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for place in range(count):
                blocks.append(Bottleneck(inputs, width, stride if place == 0 else 1))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class MixerLayer(nn.Module):
    """Mixing over tokens, then over channels with a gated activation."""

    def __init__(self, tokens: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = nn.Linear(tokens, tokens)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.silu(self.tokens(self.norm1(x).transpose(1, 2))).transpose(1, 2)
        y = self.up(self.norm2(x))
        return x + self.down(F.gelu(y) * torch.sigmoid(y))


class Mixer(nn.Module):
    """64 tokens of 48 numbers, d 128, 8 layers, 100 classes: small steps, little of it matmul."""

    def __init__(self, layers: int = 8, tokens: int = 64, dim: int = 128) -> None:
        super().__init__()
        self.embed = nn.Linear(48, dim)
        self.layers = nn.Sequential(*(MixerLayer(tokens, dim, 256) for _ in range(layers)))
        self.head = nn.Linear(dim, 100)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x)).mean(1))


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, and how to draw a batch of inputs and labels for it."""

    build: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], Batch]


def _text(batch: int, rng: torch.Generator) -> Batch:
    tokens = torch.randint(VOCABULARY, (batch, LENGTH + 1), generator=rng)
    return tokens[:, :-1], tokens[:, 1:]


def _images(batch: int, rng: torch.Generator) -> Batch:
    images = torch.randn(batch, 3, 64, 64, generator=rng)
    return images, torch.randint(1000, (batch,), generator=rng)


def _patches(batch: int, rng: torch.Generator) -> Batch:
    patches = torch.randn(batch, 64, 48, generator=rng)
    return patches, torch.randint(100, (batch,), generator=rng)


WORKLOADS = {
    "gpt": Workload(GPT, _text),
    "resnet50": Workload(ResNet50, _images),
    "mixer": Workload(Mixer, _patches),
}
