"""Tiny models of the numeric cases: compiled in seconds, and odd enough to find faults."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class GPT(nn.Module):
    """A causal transformer whose output layer is its embedding."""

    def __init__(self, dim: int = 16, layers: int = 2, vocabulary: int = 33) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocabulary, dim)
        self.pos = nn.Embedding(12, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tok.weight)


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        # No bias: the keys' own has gradient zero, and AdamW turns its rounding into steps.
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ResNet(nn.Module):
    """Two residual stages with BatchNorm, the second one strided."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            Bottleneck(width, width, stride=1), Bottleneck(width, 2 * width, stride=2)
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(images)))
        return self.head(self.stages(x).mean((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inputs, 4, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.spatial = nn.Conv2d(4, 4, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(4)
        self.expand = nn.Conv2d(4, outputs, 1, bias=False)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.reduce(x)))
        y = F.relu(self.norm2(self.spatial(y)))
        return F.relu(self.expand(y) + self.skip(x))


class Perceptron(nn.Module):
    """Layers of sizes that fit no alignment."""

    def __init__(self, sizes: tuple[int, ...] = (33, 97, 5), dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.dropout(F.silu(layer(x)))
        return self.layers[-1](x)


class TwoHeads(nn.Module):
    """A trunk with a head that is always used and one that the caller may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(33, 24)
        self.main = nn.Linear(24, 5)
        self.extra = nn.Linear(24, 5)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        x = F.silu(self.trunk(x))
        return self.main(x) + self.extra(x) if both else self.main(x)


class Checkpointed(nn.Module):
    """Blocks whose activations are computed again in backward."""

    def __init__(self, dim: int = 32, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Perceptron((dim, 2 * dim, dim)) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


class TwoTypes(nn.Module):
    """Parameters of two dtypes, so that one bucket cannot hold all gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(33, 16, dtype=torch.float32)
        self.wide = nn.Linear(16, 5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(F.silu(self.narrow(x.float())).double())


class WithLoss(nn.Module):
    """A module that returns its own loss, as many language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Perceptron()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
