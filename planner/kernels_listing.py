"""What became of fusion rules, and `--kernels`: every kernel with its ops, bytes and rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sgplan.grammar.plan import Fuse, Plan
from sgplan.planner.facts import Facts, GraphFact, KernelFact, SiteFact
from sgplan.planner.graphs import calls_of
from sgplan.planner.rules import Coverage, coverage
from sgplan.planner.units import counted, human_bytes
from sgplan.planner.words import columns

# The op that `kernels/op.py` registers for a kernel: its function, and a digest.
_KERNEL = re.compile(r"sgplan_kernels::(\w+?)_[0-9a-f]{8}(?:_backward)?\.default")
_DONE = {"fuse": "fused", "separate": "separate"}


def render_kernels(plan: Plan, facts: Facts) -> str:
    """The coverage of the rules, then the kernels of every captured graph."""
    graphs = (_graph_lines(f"{root} {name}", g) for (root, name), g in kernels_of(facts).items())
    sections = [rule_lines(plan, facts), *graphs]
    text = "\n\n".join("\n".join(lines) for lines in sections if lines)
    return (text or "no graph was compiled: the script runs eagerly") + "\n"


def rule_lines(plan: Plan, facts: Facts) -> list[str]:
    """One row for each rule, below it the sites that are not as the rule says."""
    lines: list[str] = []
    rows = [_row(found) for found in coverage(plan, facts)]
    for row, found in zip(columns(rows), coverage(plan, facts), strict=True):
        lines.append(row)
        lines += [f"      {text}" for text in _exceptions(found)]
    return ["rules", *lines] if lines else []


def _row(found: Coverage) -> list[str]:
    counts = found.counts
    own = isinstance(found.block, Fuse) and found.block.with_ != "inductor"
    done = "replaced" if own else _DONE[found.block.kind]
    expected = "" if found.block.expect is None else f"{found.block.expect} expected"
    return [
        f"  {found.block.address}",
        counted(len(found.sites), "site"),
        expected,
        f"{counts[done]} {done}",
        f"{counts['refused']} refused",
        f"{counts['rejected']} rejected" if own else f"{counts['missed']} missed",
    ]


def _exceptions(found: Coverage) -> list[str]:
    told = [site for site in found.sites if site.why]
    by_reason: dict[tuple[str, str], list[SiteFact]] = {}
    for site in told:
        by_reason.setdefault((site.outcome, site.why), []).append(site)
    return [f"{outcome}: {why}: {_where(sites)}" for (outcome, why), sites in by_reason.items()]


def _where(sites: Sequence[SiteFact]) -> str:
    places = list(dict.fromkeys(site.ops[-1][1] or "(root)" for site in sites))
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return ", ".join(places[:3]) + more


def kernels_of(facts: Facts) -> dict[tuple[str, str], GraphFact]:
    """Every compiled graph that has kernels, by its root and its name in the program."""
    found: dict[tuple[str, str], GraphFact] = {}
    for call in calls_of(facts):
        found[call.root, f"fwd{call.suffix}"] = call.forward
        if call.backward is not None:
            found[call.root, f"bwd{call.suffix}"] = call.backward
    return {name: graph for name, graph in found.items() if graph.kernels}


def _graph_lines(name: str, graph: GraphFact) -> list[str]:
    moved = sum(kernel.bytes for kernel in graph.kernels)
    head = f"{name}   {graph.region}   {counted(len(graph.kernels), 'kernel')}   "
    rows = [
        [f"  {place}", kernel.kind, human_bytes(kernel.bytes), _kernel_words(kernel)]
        for place, kernel in enumerate(graph.kernels)
    ]
    return [f"{head}{human_bytes(moved)} moved", *columns(rows)]


def _kernel_words(kernel: KernelFact) -> str:
    rules = f"   # {' '.join(kernel.rules)}" if kernel.rules else ""
    return ops_words(kernel) + rules


def ops_words(kernel: KernelFact) -> str:
    """Ops by module, in the order in which they first come: `add.Tensor gelu (layers.0)`."""
    modules: dict[str, list[str]] = {}
    for op, module in kernel.ops:
        modules.setdefault(module, []).append(_short(op))
    if not modules:
        return "a copy in another layout"
    parts = [f"{' '.join(ops)} ({module or 'root'})" for module, ops in modules.items()]
    more = [f"and {len(parts) - 4} modules more"] if len(parts) > 4 else []
    return ", ".join(parts[:4] + more)


def _short(op: str) -> str:
    """`gelu` for `aten.gelu.default`, `triton:norm` for the op of a kernel."""
    own = _KERNEL.fullmatch(op)
    return f"triton:{own[1]}" if own else op.removeprefix("aten.").removesuffix(".default")


def kernels_json(plan: Plan, facts: Facts) -> dict[str, Any]:
    """The machine form of `render_kernels`; `planner/README.md` documents its keys."""
    return {
        "rules": [
            {
                "rule": found.block.address,
                "expect": found.block.expect,
                "sites": [_site_json(site) for site in found.sites],
                "misses": len(found.misses),
            }
            for found in coverage(plan, facts)
        ],
        "graphs": [
            {
                "name": f"{root} {name}",
                "region": graph.region,
                "kernels": [
                    {
                        "kind": kernel.kind,
                        "bytes": kernel.bytes,
                        "ops": [{"op": op, "module": module} for op, module in kernel.ops],
                        "rules": list(kernel.rules),
                    }
                    for kernel in graph.kernels
                ],
            }
            for (root, name), graph in kernels_of(facts).items()
        ],
    }


def _site_json(site: SiteFact) -> dict[str, Any]:
    return {
        "ops": [{"op": op, "module": module} for op, module in site.ops],
        "outcome": site.outcome,
        "why": site.why,
        "kernels": list(site.kernels),
    }
