"""What `sgplan plan` prints: one place that puts plan, programs and facts of all ranks together.

Knows layout and words; refuses to know files, colours and exit codes. The machine form is
`listing_json.py`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgplan.grammar.plan import Plan
from sgplan.planner.audit import audit_lines
from sgplan.planner.facts import Facts, GraphFact, RootFact
from sgplan.planner.graphs import backward_chain, calls_of
from sgplan.planner.guard_lines import guard_rows
from sgplan.planner.kernels_listing import rule_lines
from sgplan.planner.listing_text import body_lines, header
from sgplan.planner.numerics import active_numerics
from sgplan.planner.program import Program
from sgplan.planner.program_text import format_program
from sgplan.planner.recompute import recompute_lines
from sgplan.planner.select import Match, match_all
from sgplan.planner.units import counted, human_bytes, human_flops
from sgplan.planner.words import columns

Parts = Sequence[tuple[Program, Facts]]


def render_plan(plan: Plan, parts: Parts, *, width: int = 100) -> str:
    """The whole listing.

    Args:
        plan: resolved for the world of the parts.
        parts: program and facts of every rank, at least one.
        width: columns at which sentences go on below; tables keep their lines.
    """
    if not parts:
        raise ValueError("a listing needs the part of at least one rank")
    sections = (section(_View(plan, parts, width)) for section in _SECTIONS)
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


@dataclass(frozen=True, slots=True)
class _View:
    """What every section sees."""

    plan: Plan
    parts: Parts
    width: int

    @property
    def facts(self) -> Facts:
        """Of the first rank: data-parallel ranks have the same roots."""
        return self.parts[0][1]


def _sentence(text: str, width: int, lead: str = "  ", more: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=lead, subsequent_indent=more, break_long_words=False
    )


def _roots(view: _View) -> list[str]:
    """For each root: engine and path, and below it why."""
    lines: list[str] = []
    for root in view.facts.roots:
        lines.append(f"root {root.name} ({root.cls}): {root.engine}, {_PATHS[root.path]}")
        lines += _sentence(root.why, view.width)
    return lines or ["no model was called"]


_PATHS = {
    "in_graph": "reduces in the graph",
    "hooks": "reduces by hooks",
    "stock": "reduces as stock DDP",
    "none": "reduces nothing",
}


def _matches(view: _View) -> list[str]:
    rows = [
        [f"  {found.written.owner}", str(found.written.selector), _found(found), _example(found)]
        for found in match_all(view.plan, view.facts)
    ]
    roots = {root.name for root in view.facts.roots}
    rows += [
        [f"  {model.address}", model.is_, counted(int(model.label in roots), "model"), ""]
        for model in view.plan.models
    ]
    return ["selectors", *columns(rows)] if rows else []


def _found(found: Match) -> str:
    if found.written.selector.op is None:
        return counted(len(found.modules), "module")
    return counted(len(found.sites), "site")


def _example(found: Match) -> str:
    names = found.modules or tuple(dict.fromkeys(site.module for site in found.sites))
    return f"first in {names[0] or 'the root itself'}" if names else ""


def _rules(view: _View) -> list[str]:
    lines = rule_lines(view.plan, view.facts)
    return [*lines, "  `--kernels` lists the kernels"] if lines else []


def _recomputes(view: _View) -> list[str]:
    return recompute_lines(view.plan, view.facts)


def _guards(view: _View) -> list[str]:
    rows = list(guard_rows(view.plan))
    return ["guards, and the variants that they declare", *columns(rows)] if rows else []


def _precision(view: _View) -> list[str]:
    return audit_lines(view.plan, view.facts)


def _programs(view: _View) -> list[str]:
    """Every rank's program, ranks that do the same folded into one."""
    lines: list[str] = []
    for program, ranks in fold(view.parts):
        if lines:
            lines.append("")
        lines += [header(program, span_of(ranks)), *body_lines(program)]
    return lines


def fold(parts: Parts) -> list[tuple[Program, list[int]]]:
    """Programs that differ in nothing but the rank, with the ranks that run them."""
    folded: dict[tuple[str, ...], tuple[Program, list[int]]] = {}
    for program, _ in parts:
        lines = tuple(format_program(program).splitlines()[1:])
        key = (program.plan, program.contract, *lines)
        folded.setdefault(key, (program, []))[1].append(program.rank)
    return list(folded.values())


def span_of(ranks: Sequence[int]) -> str:
    """`rank 0`, `rank 0..3`, `rank 0 2 5`."""
    first, last = min(ranks), max(ranks)
    if len(ranks) > 1 and last - first + 1 == len(ranks):
        return f"rank {first}..{last}"
    return f"rank {' '.join(map(str, sorted(ranks)))}"


def _costs(view: _View) -> list[str]:
    """The captured graphs of eager roots, which the program does not run."""
    eager = [root for root in view.facts.roots if root.engine == "eager"]
    rows = [_graph_row(root, graph) for root in eager for graph in root.graphs]
    return ["captured for information, not run", *columns(rows)] if rows else []


def _graph_row(root: RootFact, graph: GraphFact) -> list[str]:
    saved = f"{human_bytes(graph.bytes_saved)} saved" if graph.bytes_saved else ""
    return [
        f"  {root.name} {graph.direction}",
        graph.region if not graph.variant else f"{graph.region}, variant {graph.variant}",
        counted(len(graph.ops), "op"),
        human_flops(graph.flops),
        f"{human_bytes(graph.bytes)} moved",
        saved,
    ]


def _misses(view: _View) -> list[str]:
    missed = [(miss.where, miss.reason) for root in view.facts.roots for miss in root.misses]
    lines = [
        line
        for where, reason in dict.fromkeys(missed)
        for line in _sentence(f"{where}: {reason}", view.width, more="    ")
    ]
    return ["not captured, left to the script", *lines] if lines else []


def _numerics(view: _View) -> list[str]:
    lines = [
        line
        for change in active_numerics(view.plan, view.facts)
        for line in _sentence(f"{change.name}: {change.why}", view.width, more="    ")
    ]
    return ["passes that change numerics", *lines] if lines else ["no pass changes numerics"]


def _notes(view: _View) -> list[str]:
    return [
        line
        for text in notes(view.parts)
        for line in _sentence(f"note: {text}", view.width, lead="", more="  ")
    ]


def notes(parts: Parts) -> tuple[str, ...]:
    """What a reader should know beside the program, one sentence each."""
    facts = parts[0][1]
    found = [text for root in facts.roots for text in _root_notes(root, facts)]
    found += [f"{o.cls} stays as written: {o.why}" for o in facts.optimizers if o.why]
    if len(graph_sets(parts)) > 1:
        found.append("ranks captured different graphs; they still reduce the same bucket list")
    return tuple(found)


def _root_notes(root: RootFact, facts: Facts) -> list[str]:
    if root.path == "in_graph" and not backward_chain(calls_of(facts), root):
        return [
            f"some gradients of `{root.name}` are made by no captured backward, or by several: "
            "hooks reduce those"
        ]
    if root.engine == "eager" and root.graphs:
        return [f"`{root.name}` runs eagerly; its graphs were captured for information"]
    return []


def graph_sets(parts: Parts) -> set[tuple[str, ...]]:
    """The size-free digests of each rank's graphs; one element when ranks agree."""
    return {
        tuple(sorted(g.shapeless_digest for root in facts.roots for g in root.graphs))
        for _, facts in parts
    }


_SECTIONS: tuple[Callable[[_View], list[str]], ...] = (
    _roots,
    _matches,
    _rules,
    _recomputes,
    _guards,
    _precision,
    _programs,
    _costs,
    _misses,
    _numerics,
    _notes,
)
