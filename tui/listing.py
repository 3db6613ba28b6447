"""A rank's program and graphs as rows of tables: pure functions of a view.

Apart from `rows.py` because it needs the planner, which is loaded when one of them is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sgplan.interpreter.counter import Cost
from sgplan.interpreter.tracked_places import backward, forward, place_of
from sgplan.planner.facts import GraphFact
from sgplan.planner.instruction_text import format_instruction
from sgplan.planner.kernels_listing import kernels_of, ops_words
from sgplan.planner.listing_text import origin_words
from sgplan.planner.program import Graph, Program, Run
from sgplan.planner.units import human_bytes, human_flops, human_time
from sgplan.tui.cells import Cell, Row
from sgplan.tui.rows import View

# --- program -------------------------------------------------------------------------------------


def program_rows(view: View) -> list[Row]:
    """The chosen rank's listing, with what its lines have cost so far."""
    if view.part is None:
        return []
    program = view.part.program
    costs = {cost.place: cost for cost in view.costs}
    graphs = {graph.name: graph for graph in program.graphs}
    return list(_program_rows(program, graphs, costs))


def _program_rows(
    program: Program, graphs: dict[str, Graph], costs: dict[str, Cost]
) -> Iterator[Row]:
    number = 0
    for phase in program.phases:
        if not phase.instructions:
            continue
        around = {"forward": [forward(root.name) for root in program.roots]}
        around["backward"] = [backward()]
        whole = [costs[name] for name in around.get(phase.name, []) if name in costs]
        yield (Cell(phase.name, "dim"), *_cost(_together(whole)), Cell(""), Cell(""), Cell(""))
        for line in phase.instructions:
            graph = graphs.get(line.graph) if isinstance(line, Run) else None
            yield (
                Cell(f"{number:3}  {format_instruction(line)}"),
                *_cost(costs.get(place_of(line) or "")),
                Cell(human_flops(graph.flops) if graph is not None else ""),
                Cell(human_bytes(graph.bytes) if graph is not None else ""),
                Cell(origin_words(line.origin).removeprefix("# "), "dim"),
            )
            number += 1


def _together(costs: Sequence[Cost]) -> Cost | None:
    if not costs:
        return None
    return Cost("", max(cost.times for cost in costs), sum(cost.seconds for cost in costs))


def _cost(cost: Cost | None) -> tuple[Cell, Cell]:
    if cost is None:
        return Cell("-", "dim"), Cell("")
    return Cell(human_time(cost.seconds / cost.times)), Cell(str(cost.times))


# --- graph ---------------------------------------------------------------------------------------


def graph_rows(view: View) -> list[Row]:
    """Roots, their graphs with kernels, and their buckets, of the chosen rank."""
    if view.part is None:
        return []
    program, facts = view.part.program, view.part.facts
    rows: list[Row] = []
    why = {root.name: root.why for root in facts.roots}
    kernels = kernels_of(facts)
    for root in program.roots:
        what = Cell(f"root {root.name}")
        engine = Cell(f"{root.engine}, {root.path}")
        rows.append((what, engine, Cell(f"{root.gradients} grads"), Cell(why.get(root.name, ""))))
        for graph in program.graphs:
            if graph.root == root.name:
                rows += _graph_rows(graph, kernels.get((root.name, graph.name)))
        for bucket in program.buckets:
            if bucket.root == root.name:
                wire = "" if bucket.wire == bucket.dtype else f", {bucket.wire} on the wire"
                rows.append(
                    (
                        Cell(f"  bucket {bucket.name}"),
                        Cell(f"{len(bucket.slots)} gradients, {bucket.dtype}{wire}"),
                        Cell(human_bytes(bucket.nbytes)),
                        Cell(origin_words(bucket.origin).removeprefix("# "), "dim"),
                    )
                )
    rows += [
        (
            Cell("  runs as plain Python", "warn"),
            Cell(miss.where),
            Cell(""),
            Cell(miss.reason),
        )
        for root in facts.roots
        for miss in root.misses
    ]
    return rows


def _graph_rows(graph: Graph, fact: GraphFact | None) -> Iterator[Row]:
    """A graph, then its kernels with the rules that have a place in them."""
    yield (
        Cell(f"  graph {graph.name}"),
        Cell(graph.region or graph.direction),
        Cell(human_flops(graph.flops)),
        Cell(f"reduces {' '.join(graph.buckets)}" if graph.buckets else ""),
    )
    for number, kernel in enumerate(() if fact is None else fact.kernels):
        rules = " ".join(kernel.rules)
        yield (
            Cell(f"    kernel {number}  {kernel.kind}", "dim"),
            Cell(rules or "-", "" if rules else "dim"),
            Cell(human_bytes(kernel.bytes), "dim"),
            Cell(ops_words(kernel), "dim"),
        )
