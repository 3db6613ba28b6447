"""The machine form of the plan's listing (`--json`); `planner/README.md` documents its keys."""

from __future__ import annotations

from typing import Any

from sgplan.grammar.plan import Plan
from sgplan.planner.audit import audit
from sgplan.planner.facts import GraphFact, RootFact
from sgplan.planner.listing import Parts, notes
from sgplan.planner.numerics import active_numerics
from sgplan.planner.program_text import format_program
from sgplan.planner.recompute import outcomes
from sgplan.planner.select import Match, match_all
from sgplan.planner.wire import encode

# Raised when a key changes its meaning or goes away.
JSON_VERSION = 1


def plan_json(plan: Plan, parts: Parts) -> dict[str, Any]:
    """What `listing.render_plan` says, as plain data."""
    facts = parts[0][1]
    return {
        "version": JSON_VERSION,
        "plan": {"source": plan.source, "digest": plan.digest},
        "selectors": [_match_json(found) for found in match_all(plan, facts)],
        "ranks": [
            {"rank": program.rank, "program": encode(program), "text": format_program(program)}
            for program, _ in parts
        ],
        "recompute": [
            {
                "clause": found.fact.clause,
                "graph": f"fwd{found.call.suffix}",
                "before": found.fact.before,
                "after": found.fact.after,
                "ops": found.fact.ops,
            }
            for found in outcomes(plan, facts)
        ],
        "roots": [_root_json(root) for root in facts.roots],
        "precision": [encode(row) for row in audit(plan, facts)],
        "numerics": [
            {"pass": change.name, "why": change.why} for change in active_numerics(plan, facts)
        ],
        "notes": list(notes(parts)),
    }


def _match_json(found: Match) -> dict[str, Any]:
    return {
        "owner": found.written.owner,
        "selector": str(found.written.selector),
        "modules": list(found.modules),
        "sites": [{"op": site.op, "module": site.module} for site in found.sites],
    }


def _root_json(root: RootFact) -> dict[str, Any]:
    return {
        "name": root.name,
        "class": root.cls,
        "kind": root.kind,
        "engine": root.engine,
        "path": root.path,
        "why": root.why,
        "parameters": len(root.parameters),
        "graphs": [_graph_json(graph) for graph in root.graphs],
        "misses": [{"where": miss.where, "reason": miss.reason} for miss in root.misses],
    }


def _graph_json(graph: GraphFact) -> dict[str, Any]:
    return {
        "direction": graph.direction,
        "region": graph.region,
        "variant": graph.variant,
        "digest": graph.digest,
        "ops": len(graph.ops),
        "flops": graph.flops,
        "bytes": graph.bytes,
        "bytes_saved": graph.bytes_saved,
        "saved_without": graph.saved_without,
    }
