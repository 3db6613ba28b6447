"""A program for eyes: human sizes, no slots, in-graph lines indented, origins only where written.

Knows layout of one program and nothing of facts; `listing.py` puts several of them, with counts
and notes, into what `sgplan plan` prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from sgplan.planner.instruction_text import format_instruction
from sgplan.planner.program import (
    Bucket,
    Cast,
    Graph,
    Instruction,
    Origin,
    Program,
    ReduceStart,
    Root,
    Wait,
)
from sgplan.planner.units import counted, human_bytes, human_flops
from sgplan.planner.words import GAP, columns

WIDTH = 100


def listing_lines(program: Program) -> list[str]:
    """The whole program."""
    return [header(program), *body_lines(program)]


def header(program: Program, ranks: str = "") -> str:
    """The program's first line; `ranks` names several ranks whose programs are alike."""
    axes = " ".join(f"{axis}={size}" for axis, size in program.mesh)
    who = ranks or f"rank {program.rank}"
    head = GAP.join(
        (
            f"program {who} of {program.world}",
            f"mesh {axes}",
            f"plan {program.plan[:8]}",
            f"contract {program.contract[:8] or 'none'}",
        )
    )
    room = WIDTH - len(head) - len(GAP)
    return head + GAP + PurePath(program.source).name.rjust(room)


def body_lines(program: Program) -> list[str]:
    """Everything but the first line: equal for ranks that do the same."""
    return [
        *columns([_root_row(root) for root in program.roots]),
        *columns([_graph_row(graph) for graph in program.graphs]),
        *columns(bucket_rows(program.buckets)),
        *_phase_lines(program),
    ]


def _root_row(root: Root) -> list[str]:
    return [f"root {root.name}", f"{root.engine}", root.path, counted(root.gradients, "gradient")]


def _graph_row(graph: Graph) -> list[str]:
    moved = human_bytes(graph.bytes)
    return [
        f"graph {graph.name}",
        f"root {graph.root}",
        human_flops(graph.flops),
        f"{moved} moved" if moved else "",
        _saved(graph),
        counted(graph.kernels, "kernel") if graph.kernels else "",
        _effects(graph),
        f"in-graph: {' '.join(graph.buckets)}" if graph.buckets else "",
    ]


def _effects(graph: Graph) -> str:
    """`3 random, 2 mutations`."""
    count = Counter(effect.kind for effect in graph.effects)
    drawn = f"{count['random']} random" if count["random"] else ""
    changed = counted(count["mutation"], "mutation") if count["mutation"] else ""
    return ", ".join(filter(None, (drawn, changed)))


def _saved(graph: Graph) -> str:
    """What the forward keeps, and what it would keep without the plan's `recompute`."""
    saved, without = human_bytes(graph.bytes_saved), human_bytes(graph.saved_without)
    if not saved or not without:
        return f"{saved} saved" if saved else ""
    return f"{saved} saved, {without} without recompute"


def bucket_rows(buckets: Sequence[Bucket]) -> list[list[str]]:
    """The bucket table, a repeated origin shown once."""
    origins = once([bucket.origin for bucket in buckets])
    return [
        [
            f"bucket {bucket.name}",
            _stretch(bucket),
            human_bytes(bucket.nbytes),
            bucket.dtype if bucket.dtype == bucket.wire else f"{bucket.dtype} as {bucket.wire}",
            counted(len(bucket.slots), "gradient"),
            origin,
        ]
        for bucket, origin in zip(buckets, origins, strict=True)
    ]


def _stretch(bucket: Bucket) -> str:
    """`blocks.7 .. blocks.4`: where the bucket begins and ends in the model."""
    if not bucket.slots:
        return ""
    first, last = (_module(bucket.slots[place].parameter) for place in (0, -1))
    return first if first == last else f"{first} .. {last}"


def _module(parameter: str) -> str:
    """The module up to its first number, else its outermost name."""
    parts = parameter.split(".")
    number = next((i for i, part in enumerate(parts[:-1]) if part.isdigit()), 0)
    return ".".join(parts[: number + 1])


def _phase_lines(program: Program) -> Iterator[str]:
    inside = {name for graph in program.graphs for name in graph.buckets}
    number = 0
    for phase in program.phases:
        if not phase.instructions:
            continue
        yield phase.name
        spelled = _spelled(phase.instructions, inside)
        origins = once([line.origin for line in phase.instructions])
        numbers = range(number, number + len(spelled))
        rows = zip(numbers, spelled, origins, strict=True)
        yield from columns([[f"{place:3}  {text}", origin] for place, text, origin in rows])
        number += len(spelled)


def _spelled(lines: Sequence[Instruction], inside: set[str]) -> list[str]:
    """The instructions, those that say where they start with that in one column."""
    parts = [format_instruction(line).partition(GAP) for line in lines]
    indents = _indents(lines, inside)
    heads = [indent + head for indent, (head, _, _) in zip(indents, parts, strict=True)]
    placed = [head for head, (_, _, place) in zip(heads, parts, strict=True) if place]
    width = max(map(len, placed), default=0)
    return [
        head.ljust(width) + GAP + place if place else head
        for head, (_, _, place) in zip(heads, parts, strict=True)
    ]


def _indents(lines: Sequence[Instruction], inside: set[str]) -> list[str]:
    """Lines that an op of a compiled graph emits stand under its `run`.

    That ends with the wait, which stands behind the whole backward.
    """
    waited: set[str] = set()
    indents: list[str] = []
    for line in lines:
        if isinstance(line, Wait):
            waited.update(line.buckets)
        bucket = line.bucket if isinstance(line, Cast | ReduceStart) else None
        indents.append("  " if bucket in inside - waited else "")
    return indents


def once(origins: Sequence[Origin | None]) -> list[str]:
    """`# sync.bucket, line 4` for each origin that was written and is not the one above."""
    shown: list[str] = []
    above: Origin | None = None
    for origin in origins:
        written = origin is not None and origin.span is not None
        shown.append(origin_words(origin) if written and origin != above else "")
        above = origin
    return shown


def origin_words(origin: Origin | None) -> str:
    """The clause and its line; the source only when it is not the plan's own file."""
    if origin is None or origin.span is None:
        return ""
    return f"# {origin.clause}, line {origin.span.line}"
