"""The program as text that parses back: `parse_program(format_program(p)) == p`.

    format_program(p)             everything, slots and characters of every origin included
    format_program(p, "listing")  for eyes: human sizes, no slots; it does not parse back

Instruction lines are the same in both. This file knows the full form; `listing_text.py` makes the
other, `instruction_text.py` knows how an instruction is spelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from sgplan.planner.facts import EffectFact, EffectKind, Engine, Path
from sgplan.planner.instruction_text import (
    format_instruction,
    parse_instruction,
    read_instruction,
)
from sgplan.planner.listing_text import listing_lines
from sgplan.planner.program import (
    PHASES,
    Bucket,
    Graph,
    Instruction,
    Phase,
    PhaseName,
    Program,
    Root,
    Slot,
)
from sgplan.planner.words import (
    Cursor,
    TextError,
    columns,
    format_origin,
    parse_origin,
    sizes,
    word,
    words,
)

__all__ = [
    "TextError",
    "format_instruction",
    "format_program",
    "parse_instruction",
    "parse_program",
]

Detail = Literal["full", "listing"]
Direction = Literal["forward", "backward", "eager"]


def format_program(program: Program, detail: Detail = "full") -> str:
    """The program as text, one line for each instruction, a line break at the end."""
    writers: dict[Detail, Callable[[Program], list[str]]] = {
        "full": _full_lines,
        "listing": listing_lines,
    }
    return "\n".join(writers[detail](program)) + "\n"


def _full_lines(program: Program) -> list[str]:
    return [
        _header(program),
        *columns([_root_cells(root) for root in program.roots]),
        *_graph_lines(program.graphs),
        *(line for bucket in program.buckets for line in _bucket_lines(bucket)),
        *_phase_lines(program),
    ]


def _header(program: Program) -> str:
    axes = " ".join(f"{word(axis)}={size}" for axis, size in program.mesh)
    return "   ".join(
        (
            f"program rank {program.rank} of {program.world}",
            f"mesh {axes}".rstrip(),
            f"plan {word(program.plan)}",
            f"contract {word(program.contract)}",
            f"source {word(program.source)}",
        )
    )


def _root_cells(root: Root) -> list[str]:
    gradients = f"gradients {root.gradients}"
    name = f"root {word(root.name)}"
    return [name, root.engine, root.path, gradients, format_origin(root.origin)]


def _graph_lines(graphs: Sequence[Graph]) -> Iterator[str]:
    rows = columns([_graph_cells(graph) for graph in graphs])
    for row, graph in zip(rows, graphs, strict=True):
        yield row
        yield from columns([_effect_cells(effect) for effect in graph.effects])


def _effect_cells(effect: EffectFact) -> list[str]:
    return [
        f"  effect {effect.kind}",
        word(effect.op),
        f"module {word(effect.module)}",
        f"touches {word(effect.touches)}",
    ]


def _graph_cells(graph: Graph) -> list[str]:
    def known(name: str, count: int | None) -> str:
        return "" if count is None else f"{name} {count}"

    return [
        f"graph {word(graph.name)}",
        f"root {word(graph.root)}",
        graph.direction,
        f"region {word(graph.region)}",
        f"digest {word(graph.digest)}",
        known("flops", graph.flops),
        known("bytes", graph.bytes),
        known("saved", graph.bytes_saved),
        known("without", graph.saved_without),
        known("kernels", graph.kernels),
        f"buckets {words(graph.buckets)}" if graph.buckets else "",
        format_origin(graph.origin),
    ]


def _bucket_lines(bucket: Bucket) -> Iterator[str]:
    yield "   ".join(
        cell
        for cell in (
            f"bucket {word(bucket.name)}",
            f"root {word(bucket.root)}",
            word(bucket.dtype),
            f"wire {word(bucket.wire)}",
            f"numel {bucket.numel}",
            f"nbytes {bucket.nbytes}",
            format_origin(bucket.origin),
        )
        if cell
    )
    yield from columns([_slot_cells(slot) for slot in bucket.slots])


def _slot_cells(slot: Slot) -> list[str]:
    return [
        f"  slot {word(slot.parameter)}",
        f"index {slot.index}",
        f"offset {slot.offset}",
        f"shape {sizes(slot.shape)}",
        f"strides {sizes(slot.strides)}",
    ]


def _phase_lines(program: Program) -> Iterator[str]:
    number = 0
    for phase in program.phases:
        yield phase.name
        rows: list[list[str]] = []
        for line in phase.instructions:
            rows.append([f"{number:3}  {format_instruction(line)}", format_origin(line.origin)])
            number += 1
        yield from columns(rows)


@dataclass(slots=True)
class _Parts:
    """What has been read so far."""

    program: Program | None = None
    roots: list[Root] = field(default_factory=list[Root])
    graphs: list[Graph] = field(default_factory=list[Graph])
    buckets: list[Bucket] = field(default_factory=list[Bucket])
    phases: list[tuple[PhaseName, list[Instruction]]] = field(
        default_factory=list[tuple[PhaseName, list[Instruction]]]
    )


def parse_program(text: str) -> Program:
    """The inverse of `format_program` in full detail.

    Raises:
        TextError: a line does not parse; the message quotes it.
    """
    parts = _Parts()
    for line in filter(str.strip, text.splitlines()):
        _read_line(Cursor(line), parts, indented=line[0].isspace() or line[0].isdigit())
    if parts.program is None:
        raise TextError("expected a line that begins with `program`")
    return replace(
        parts.program,
        roots=tuple(parts.roots),
        graphs=tuple(parts.graphs),
        buckets=tuple(parts.buckets),
        phases=tuple(Phase(name, tuple(lines)) for name, lines in parts.phases),
    )


def _read_line(cursor: Cursor, parts: _Parts, *, indented: bool) -> None:
    if indented and not (cursor.peek("slot") or cursor.peek("effect")):
        _read_numbered(cursor, parts)
        return
    _READERS[cursor.one_of(tuple(_READERS))](cursor, parts)


def _read_numbered(cursor: Cursor, parts: _Parts) -> None:
    cursor.number()
    if not parts.phases:
        raise cursor.error("a phase")
    line = read_instruction(cursor)
    parts.phases[-1][1].append(replace(line, origin=parse_origin(cursor)))


def _read_header(cursor: Cursor, parts: _Parts) -> None:
    cursor.expect("rank")
    rank = cursor.number()
    cursor.expect("of")
    world = cursor.number()
    cursor.expect("mesh")
    mesh: list[tuple[str, int]] = []
    while not cursor.peek("plan"):
        axis = cursor.word()
        cursor.expect("=")
        mesh.append((axis, cursor.number()))
    plan, contract, source = (_named(cursor, name) for name in ("plan", "contract", "source"))
    cursor.end()
    parts.program = Program(rank, world, tuple(mesh), source, plan, contract)


def _named(cursor: Cursor, name: str) -> str:
    cursor.expect(name)
    return cursor.word()


def _read_root(cursor: Cursor, parts: _Parts) -> None:
    name = cursor.word()
    engine = cast(Engine, cursor.one_of(get_args(Engine)))
    path = cast(Path, cursor.one_of(get_args(Path)))
    cursor.expect("gradients")
    parts.roots.append(Root(name, engine, path, cursor.number(), parse_origin(cursor)))


def _read_graph(cursor: Cursor, parts: _Parts) -> None:
    def known(name: str) -> int | None:
        return cursor.number() if cursor.maybe(name) else None

    graph = Graph(
        name=cursor.word(),
        root=_named(cursor, "root"),
        direction=cast(Direction, cursor.one_of(get_args(Direction))),
        region=_named(cursor, "region"),
        digest=_named(cursor, "digest"),
        flops=known("flops"),
        bytes=known("bytes"),
        bytes_saved=known("saved"),
        saved_without=known("without"),
        kernels=known("kernels"),
        buckets=cursor.words() if cursor.maybe("buckets") else (),
        origin=parse_origin(cursor),
    )
    parts.graphs.append(graph)


def _read_effect(cursor: Cursor, parts: _Parts) -> None:
    if not parts.graphs:
        raise cursor.error("a graph")
    kind = cast(EffectKind, cursor.one_of(get_args(EffectKind)))
    op = cursor.word()
    effect = EffectFact(kind, op, _named(cursor, "module"), _named(cursor, "touches"))
    cursor.end()
    graph = parts.graphs[-1]
    parts.graphs[-1] = replace(graph, effects=(*graph.effects, effect))


def _read_bucket(cursor: Cursor, parts: _Parts) -> None:
    bucket = Bucket(
        name=cursor.word(),
        root=_named(cursor, "root"),
        dtype=cursor.word(),
        wire=_named(cursor, "wire"),
        numel=int(_named(cursor, "numel")),
        nbytes=int(_named(cursor, "nbytes")),
        slots=(),
        origin=parse_origin(cursor),
    )
    parts.buckets.append(bucket)


def _read_slot(cursor: Cursor, parts: _Parts) -> None:
    if not parts.buckets:
        raise cursor.error("a bucket")
    parameter = cursor.word()
    cursor.expect("index")
    index = cursor.number()
    cursor.expect("offset")
    offset = cursor.number()
    cursor.expect("shape")
    shape = cursor.sizes()
    cursor.expect("strides")
    slot = Slot(parameter, index, offset, shape, cursor.sizes())
    cursor.end()
    bucket = parts.buckets[-1]
    parts.buckets[-1] = replace(bucket, slots=(*bucket.slots, slot))


def _phase_reader(name: PhaseName) -> Callable[[Cursor, _Parts], None]:
    def read(cursor: Cursor, parts: _Parts) -> None:
        cursor.end()
        parts.phases.append((name, []))

    return read


_READERS: dict[str, Callable[[Cursor, _Parts], None]] = {
    "program": _read_header,
    "root": _read_root,
    "graph": _read_graph,
    "effect": _read_effect,
    "bucket": _read_bucket,
    "slot": _read_slot,
    **{name: _phase_reader(name) for name in PHASES},
}
