"""Trains the numeric cases one after another in one process group and saves what came out.

    torchrun --standalone --nproc-per-node 2 script.py OUT [--compile] [--dtype float64] [CASE ...]

A plain PyTorch script: how the gradients travel is not its business.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from cases import CASES
from lab import Lab


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    return parser.parse_args()


def main() -> None:
    args = parse()
    dist.init_process_group("gloo")
    torch.set_default_dtype(getattr(torch, args.dtype))
    # Cut graphs would round elsewhere, and all cases share the code objects whose compiles count.
    torch._dynamo.config.optimize_ddp = False
    torch._dynamo.config.recompile_limit = 100
    for name in args.cases:
        torch.manual_seed(0)
        lab = Lab(compiled=args.compile)
        CASES[name](lab)
        torch.save(lab.finish(), args.out / f"{name}-{lab.rank}.pt")
        print(f"rank {lab.rank} {name} {lab.losses[-1]:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
