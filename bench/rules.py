"""What rules cost beside the compile they steer: a forward graph of thousands of ops, 20 rules.

    python bench/rules.py                # about 5,000 nodes
    python bench/rules.py --layers 20    # a quick look

Prints the seconds that sgplan's own code took and the share of the whole compile, then the same
with a kernel in the place of one rule's ops; exit status 1 when a share is above the bar. The check
of a kernel is left out: its verdict is kept, once for each machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sgplan.grammar.check import check_text
from sgplan.interpreter import ops
from sgplan.planner import torch_api
from sgplan.planner.capture.device_profile import measured
from sgplan.planner.capture.rewrite import rewritten
from sgplan.planner.capture.sites import DeviceProfile
from sgplan.planner.capture.steering import Steering
from sgplan.planner.kernels.check import Case
from sgplan.planner.kernels.source import located
from sgplan.planner.kernels.substitute import Substitution
from sgplan.planner.rules import Rule, rules_of

assert ops.__doc__  # imported for the op it registers

BAR = 0.05
PATTERNS = (
    "bias -> aten.gelu",
    "norm -> aten.gelu",
    "aten.gelu -> norm",
    "softmax -> aten.mul",
    "aten.mul -> aten.add",
)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(F.gelu(self.inner(x)))
        return x + torch.softmax(F.gelu(hidden), -1) * hidden


class Timed:
    """Hooks whose own seconds are added up, those of the adapter's walks with them."""

    def __init__(self, hooks: Steering) -> None:
        self.seconds = 0.0
        walks: Any = vars(torch_api)["_Computed"]
        walks.__call__ = self._timed(walks.__call__)
        self.uuid, self.steers = hooks.uuid, hooks.steers
        for name in ("rewrite", "apart", "together", "objected", "fused"):
            setattr(self, name, self._timed(getattr(hooks, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def twenty_rules(layers: int, kernel: str = "") -> tuple[Rule, ...]:
    """Each pattern in a quarter of the layers of its own; the first with a kernel, if there is."""
    blocks = [
        f'fuse "r{n}_{part}" {{ match = {pattern}  in = "{{{part * layers // 4}'
        f'..{(part + 1) * layers // 4 - 1}}}"  on_miss = warn }}'
        for n, pattern in enumerate(PATTERNS)
        for part in range(4)
    ]
    if kernel:
        blocks[0] = blocks[0].replace("{", f'{{ with = triton("{kernel}") ', 1)
    found, problems = check_text("sgplan 1\n" + "\n".join(blocks), "bench.sgplan")
    assert found is not None, problems
    return rules_of(found.resolve(1, "cpu"), None)


def cpu() -> DeviceProfile:
    return measured("cpu")


def accepted(case: Case) -> str:
    """No objection: the kernel was checked when the library was."""
    return ""


def measure(layers: int, kernel: str = "") -> tuple[int, int, float, float]:
    """Nodes, sites, own seconds, seconds of the whole compile.

    Args:
        kernel: what stands for the ops of the first rule's sites.
    """
    model = nn.Sequential(*[Layer(32) for _ in range(layers)])
    modules = [name for name, _ in model.named_modules()]
    seen: list[tuple[int, int, float, float]] = []

    def backend(gm: Any, inputs: Any) -> Any:
        began = time.perf_counter()
        nodes = 0
        rules = twenty_rules(layers, kernel)
        kernels = {r.address: located(r.kernel, Path()) for r in rules if r.kernel is not None}
        if kernels:
            changes = Substitution(rules, tuple(modules), kernels, accepted, cpu)
            changed = rewritten(gm, [changes])
            assert all(each.fact.outcome == "replaced" for each in changed.placed)
            gm = changed.gm
        before = time.perf_counter() - began
        left = [rule for rule in rules if rule.kernel is None]
        steering = Steering(left, "forward", modules, cpu)
        hooks: Any = Timed(steering)

        def inner(graph: Any, example: Any, **kwargs: Any) -> Any:
            nonlocal nodes
            nodes = len(graph.graph.nodes)
            with torch_api.fusion_hooks(hooks):
                return torch_api.compile_fx_inner(graph, example, **kwargs)

        call = torch_api.compile_fx(gm, inputs, inner_compile=inner)
        assert steering.schedule is not None
        sites = len(steering.schedule.sites)
        seen.append((nodes, sites, before + hooks.seconds, time.perf_counter() - began))
        return call

    settings = {"enable_autograd_cache": False}
    with (
        torch.no_grad(),
        torch_api.functorch_config(**settings),
        torch_api.inductor_config(force_disable_caches=True),
    ):
        torch.compile(model, backend=backend)(torch.randn(4, 32))
    return seen[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=158)
    args = parser.parse_args()
    worst = 0.0
    for what, kernel in (("20 rules", ""), ("one of them with a kernel", "sgplan:bias_gelu")):
        nodes, sites, own, whole = measure(args.layers, kernel)
        worst = max(worst, own / whole)
        share = f"{own:.2f} s of {whole:.1f} s, {own / whole:.1%}"
        print(f"{nodes} nodes, {what}, {sites} sites: {share}")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
