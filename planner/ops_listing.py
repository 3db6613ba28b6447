"""What `sgplan plan --ops` prints: the captured ops, modules and families to select from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sgplan.planner.facts import Facts, OpFact
from sgplan.planner.families import FAMILIES
from sgplan.planner.select import backward_sites, forward_sites
from sgplan.planner.units import counted, human_flops
from sgplan.planner.words import columns

EXAMPLES = 3


def render_ops(facts: Facts) -> str:
    """Forward ops with count and examples, backward ops, modules with class, families."""
    sections = (
        _op_lines("ops of the forward graphs", forward_sites(facts)),
        _op_lines("ops of the backward graphs", backward_sites(facts)),
        _module_lines(facts),
        _family_lines(facts),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def by_name(ops: Iterable[OpFact]) -> dict[str, list[OpFact]]:
    """Ops under their names, in alphabetical order."""
    found: defaultdict[str, list[OpFact]] = defaultdict(list)
    for op in ops:
        found[op.op].append(op)
    return dict(sorted(found.items()))


def _op_lines(title: str, ops: tuple[OpFact, ...]) -> list[str]:
    rows = [
        [f"  {name}", f"{len(same)}×", _flops(same), examples(op.module for op in same)]
        for name, same in by_name(ops).items()
    ]
    return [title, *columns(rows)] if rows else []


def _flops(ops: list[OpFact]) -> str:
    total = sum(op.flops for op in ops)
    return human_flops(total) if total else ""


def examples(modules: Iterable[str]) -> str:
    """The first few module paths, and how many more there are."""
    names = list(dict.fromkeys(module or "(root)" for module in modules))
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return ", ".join(names[:EXAMPLES]) + more


def _module_lines(facts: Facts) -> list[str]:
    rows = [
        [f"  {path or '(root)'}", cls, root.name if len(facts.roots) > 1 else ""]
        for root in facts.roots
        for path, cls in root.modules
    ]
    return ["modules", *columns(rows)] if rows else []


def _family_lines(facts: Facts) -> list[str]:
    sites = forward_sites(facts)
    rows: list[list[str]] = []
    for family in FAMILIES:
        members = [site for site in sites if family in site.families]
        names = examples(site.op for site in members)
        rows.append([f"  {family}", counted(len(members), "site"), names])
    return ["families", *columns(rows)]


def ops_json(facts: Facts) -> dict[str, Any]:
    """The machine form of `render_ops`; `planner/README.md` documents its keys."""
    return {
        "forward": _ops_json(forward_sites(facts)),
        "backward": _ops_json(backward_sites(facts)),
        "modules": [
            {"root": root.name, "path": path, "class": cls}
            for root in facts.roots
            for path, cls in root.modules
        ],
        "families": {
            family: sorted({s.op for s in forward_sites(facts) if family in s.families})
            for family in FAMILIES
        },
    }


def _ops_json(ops: tuple[OpFact, ...]) -> list[dict[str, Any]]:
    return [
        {
            "op": name,
            "count": len(same),
            "flops": sum(op.flops for op in same),
            "families": list(same[0].families),
            "modules": list(dict.fromkeys(op.module for op in same)),
        }
        for name, same in by_name(ops).items()
    ]
