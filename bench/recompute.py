"""What `recompute` keeps of the activations of a GPT, and what it computes again for that.

    python bench/recompute.py                       # 10 M parameters
    python bench/recompute.py --layers 2 --dim 64   # a quick look
    python bench/recompute.py --runs                # trains a step too: what autograd keeps

Bytes are those of the captured forward graph; FLOPs are of both graphs of one step. Nothing is
compiled without `--runs`.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgplan.grammar.check import check_text
from sgplan.planner.capture.backend import Compiled, GraphCompiler, InductorRecorder
from sgplan.planner.capture.recompute import Recomputing
from sgplan.planner.capture.record import record_graph
from sgplan.planner.facts import GraphFact
from sgplan.planner.recompute import requests_of
from sgplan.planner.units import human_bytes, human_flops

SCRIPT = Path(__file__).parent.parent / "plans" / "gpt_bytes" / "train.py"
BLOCKS = (
    "",
    "memory = 75%",
    "memory = 50%",
    "memory = 25%",
    'in = "blocks.*"  every = 2modules',
)


def gpt(args: argparse.Namespace) -> nn.Module:
    """The model of `plans/gpt_bytes`."""
    spec = importlib.util.spec_from_file_location("gpt_bytes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    torch.manual_seed(0)
    return script.GPT(args.layers, args.dim, args.heads, args.length)


def capture(args: argparse.Namespace, block: str) -> tuple[Compiled, int]:
    """The graphs under one `recompute` block, and the bytes that autograd kept when it ran."""
    body = f"recompute {{ {block} }}" if block else ""
    file, problems = check_text(f"sgplan 1\n{body}\n", "bench.sgplan")
    assert file is not None, problems
    model = gpt(args)
    modules = tuple(name for name, _ in model.named_modules())
    again = Recomputing(requests_of(file.resolve(1, "cpu"), None), modules)
    found: list[Compiled] = []

    def record(graph: Any, direction: Any, inputs: Any) -> GraphFact:
        return record_graph(graph, direction, "GPT.forward", modules=modules)

    def backend(gm: Any, inputs: Any) -> Any:
        kind: Any = GraphCompiler if args.runs else InductorRecorder
        found.append(kind(record, "none", recomputing=again).compile(gm, inputs, {}, None))
        return found[-1].call

    live = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in live:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch._dynamo.reset()
    tokens = torch.randint(256, (args.batch, args.length))
    live.add(tokens.untyped_storage().data_ptr())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = torch.compile(model, backend=backend)(tokens)
    logits.square().mean().backward()
    # What the loss outside of the graph saves is the graph's result.
    kept.pop(logits.untyped_storage().data_ptr(), None)
    return found[0], sum(kept.values()) if args.runs else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="What `recompute` keeps of a GPT.")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dim", type=int, default=320)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--runs", action="store_true")
    args = parser.parse_args()
    print(f"{'recompute':36} {'saved':>10} {'share':>7} {'FLOPs a step':>14} {'seconds':>8}")
    whole = 0
    for block in BLOCKS:
        began = time.perf_counter()
        outcome, kept = capture(args, block)
        saved = next(g.bytes_saved for g in outcome.graphs if g.direction == "forward")
        whole = whole or saved
        flops = sum(graph.flops for graph in outcome.graphs)
        line = f"{block or '-':36} {human_bytes(saved):>10} {100 * saved / whole:6.1f}%"
        line += f" {human_flops(flops):>14} {time.perf_counter() - began:8.1f}"
        print(line + (f"   autograd kept {human_bytes(kept)}" if args.runs else ""), flush=True)


if __name__ == "__main__":
    main()
