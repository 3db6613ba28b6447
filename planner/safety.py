"""The check before launch: the real instruction streams of all ranks, no torch, no process.

Each rule walks one rank's stream, or all of them together, and yields the line that breaks it. A
failure is shown as a grid, time downwards and ranks across, with the offending row marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from sgplan.grammar.diagnostics import Diagnostic, Label, Refused
from sgplan.planner.grid import render_grid
from sgplan.planner.program import (
    PLANNED_PATHS,
    Cast,
    Deliver,
    Free,
    Instruction,
    Program,
    ReduceStart,
    Run,
    Update,
    Wait,
    wire_buffer,
)

_Kind = TypeVar("_Kind", bound=Instruction)


@dataclass(frozen=True, slots=True)
class Hazard:
    """One thing that would go wrong: on which rank, at which line of its stream.

    `line` is None when something is missing instead of wrong.
    """

    rank: int
    line: int | None
    fact: str


Stream = tuple[Instruction, ...]
Rule = Callable[[Program, Stream], Iterator[Hazard]]


def check(programs: Sequence[Program]) -> list[Hazard]:
    """Every hazard in the programs of all ranks, rule by rule."""
    streams = [tuple(program.instructions()) for program in programs]
    alone = [
        hazard
        for program, stream in zip(programs, streams, strict=True)
        for rule in RULES
        for hazard in rule(program, stream)
    ]
    return [*alone, *_same_communication(programs, streams)]


def require_safe(programs: Sequence[Program]) -> None:
    """Raises unless all programs together are safe to start.

    Raises:
        Refused: one SG0511 for each hazard, the first with the grid.
    """
    hazards = check(programs)
    if hazards:
        grid = render_grid(programs, hazards[0].rank, hazards[0].line)
        notes = [(grid,), *[()] * (len(hazards) - 1)]
        raise Refused(
            _diagnostic(hazard, programs, note) for hazard, note in zip(hazards, notes, strict=True)
        )


def _diagnostic(hazard: Hazard, programs: Sequence[Program], notes: tuple[str, ...]) -> Diagnostic:
    program = next(p for p in programs if p.rank == hazard.rank)
    line = None if hazard.line is None else tuple(program.instructions())[hazard.line]
    span = line.origin.span if line is not None and line.origin is not None else None
    return Diagnostic(
        "SG0511",
        f"the program of rank {hazard.rank} is not safe to start: {hazard.fact}",
        None if span is None else Label(span, "asked for here"),
        notes=notes,
        help="this is a fault of sgplan, not of the plan: please report it with this grid",
    )


def _one_bucket_each(program: Program, stream: Stream) -> Iterator[Hazard]:
    for root in program.roots:
        buckets = [bucket for bucket in program.buckets if bucket.root == root.name]
        held = Counter(slot.index for bucket in buckets for slot in bucket.slots)
        wanted = range(root.gradients if root.path in PLANNED_PATHS else 0)
        for index in sorted(held.keys() | set(wanted)):
            if held[index] != (index in wanted):
                where = f"gradient {index} of `{root.name}` is in {held[index]} buckets"
                yield Hazard(program.rank, None, where)


def _starts_in_order(program: Program, stream: Stream) -> Iterator[Hazard]:
    """Per root: hooks and graphs of several roots may interleave, one root's list may not."""
    for root in program.roots:
        order = [bucket.name for bucket in program.buckets if bucket.root == root.name]
        starts = [(i, r) for i, r in _numbered(stream, ReduceStart) if r.bucket in order]
        for (place, line), wanted in zip_longest(starts, order, fillvalue=(None, None)):
            if line is None:
                yield Hazard(program.rank, None, f"bucket `{wanted}` is never reduced")
            elif line.bucket != wanted:
                fact = f"`{line.bucket}` starts where the bucket list has `{wanted}`"
                yield Hazard(program.rank, place, fact)
                break


def _one_wait_each(program: Program, stream: Stream) -> Iterator[Hazard]:
    started: set[str] = set()
    waited: set[str] = set()
    for place, line in enumerate(stream):
        if isinstance(line, ReduceStart):
            started.add(line.bucket)
        for name in line.buckets if isinstance(line, Wait) else ():
            if name in waited or name not in started:
                why = "was waited for before" if name in waited else "has not started"
                yield Hazard(program.rank, place, f"`wait` of `{name}`, which {why}")
            waited.add(name)
    for name in sorted(started - waited):
        yield Hazard(program.rank, None, f"nothing waits for `{name}`")


def _deliver_after_wait(program: Program, stream: Stream) -> Iterator[Hazard]:
    pending = {bucket.name: bucket.root for bucket in program.buckets}
    delivered: set[str] = set()
    for place, line in enumerate(stream):
        for name in line.buckets if isinstance(line, Wait) else ():
            pending.pop(name, None)
        if not isinstance(line, Deliver):
            continue
        if line.root in delivered:
            yield Hazard(program.rank, place, f"the gradients of `{line.root}` come twice")
        for name in sorted(name for name, root in pending.items() if root == line.root):
            yield Hazard(program.rank, place, f"`deliver` before `wait {name}`")
        delivered.add(line.root)
    for root in program.roots:
        if root.path in PLANNED_PATHS and root.gradients and root.name not in delivered:
            yield Hazard(program.rank, None, f"the gradients of `{root.name}` never come")


def _update_after_deliver(program: Program, stream: Stream) -> Iterator[Hazard]:
    last = max((place for place, _ in _numbered(stream, Deliver)), default=-1)
    for place, line in _numbered(stream, Update):
        if place < last:
            yield Hazard(
                program.rank, place, f"`{line.optimizer}` updates before the last `deliver`"
            )


def _freed_once(program: Program, stream: Stream) -> Iterator[Hazard]:
    made: set[str] = set()
    freed: set[str] = set()
    for place, line in enumerate(stream):
        for name in sorted(set(_used(line)) & freed):
            yield Hazard(program.rank, place, f"`{name}` is used after it was freed")
        for name in line.values if isinstance(line, Free) else ():
            if name in freed or name not in made:
                why = "twice" if name in freed else "and was never made"
                yield Hazard(program.rank, place, f"`{name}` is freed {why}")
            freed.add(name)
        made.update(_made(line))
    for name in sorted((made - freed) & _owned(program)):
        yield Hazard(program.rank, None, f"`{name}` is never freed")


def _owned(program: Program) -> set[str]:
    """What the program, and not the script, must free: wire buffers, and what a backward graph
    reads of a forward graph."""
    directions = {graph.name: graph.direction for graph in program.graphs}
    runs = [line for line in program.instructions() if isinstance(line, Run)]
    made = {v for r in runs if directions.get(r.graph) == "forward" for v in r.outputs}
    read = {v for r in runs if directions.get(r.graph) == "backward" for v in r.inputs}
    return {wire_buffer(bucket.name) for bucket in program.buckets} | (made & read)


def _used(line: Instruction) -> tuple[str, ...]:
    if isinstance(line, Run):
        return line.inputs
    return (wire_buffer(line.bucket),) if isinstance(line, Cast) else ()


def _made(line: Instruction) -> tuple[str, ...]:
    if isinstance(line, Run):
        return line.outputs
    return (wire_buffer(line.bucket),) if isinstance(line, Cast) else ()


def _casts_in_pairs(program: Program, stream: Stream) -> Iterator[Hazard]:
    """To the wire right before the start, back after the wait: `narrow` holds what is under way."""
    buckets = {bucket.name: bucket for bucket in program.buckets if bucket.wire != bucket.dtype}
    narrow: dict[str, str] = {}
    for place, line in enumerate(stream):
        if isinstance(line, ReduceStart) and line.bucket in buckets:
            if narrow.get(line.bucket) != "cast":
                yield Hazard(program.rank, place, f"`{line.bucket}` starts without its cast")
            narrow[line.bucket] = "started"
        for name in line.buckets if isinstance(line, Wait) else ():
            if name in buckets:
                narrow[name] = "waited"
        if isinstance(line, Cast) and line.bucket in buckets:
            yield from _one_cast(program, place, line, narrow)
    for name in sorted(narrow):
        yield Hazard(program.rank, None, f"`{name}` is never cast back from the wire")


def _one_cast(program: Program, place: int, line: Cast, narrow: dict[str, str]) -> Iterator[Hazard]:
    bucket = next(b for b in program.buckets if b.name == line.bucket)
    if line.target == bucket.wire:
        if line.bucket in narrow:
            yield Hazard(program.rank, place, f"`{line.bucket}` is cast to the wire twice")
        narrow[line.bucket] = "cast"
    elif narrow.pop(line.bucket, None) != "waited":
        yield Hazard(program.rank, place, f"`{line.bucket}` is cast back before its `wait`")


def _numbered(stream: Stream, kind: type[_Kind]) -> list[tuple[int, _Kind]]:
    return [(place, line) for place, line in enumerate(stream) if isinstance(line, kind)]


RULES: tuple[Rule, ...] = (
    _one_bucket_each,
    _starts_in_order,
    _one_wait_each,
    _deliver_after_wait,
    _update_after_deliver,
    _freed_once,
    _casts_in_pairs,
)


def _same_communication(programs: Sequence[Program], streams: Sequence[Stream]) -> Iterator[Hazard]:
    """Ranks may compute differently; what they send, and in which order, must be one list."""
    if not programs:
        return
    first = _communication(programs[0], streams[0])
    for program, stream in zip(programs[1:], streams[1:], strict=True):
        own = _communication(program, stream)
        for theirs, mine in zip_longest(first, own):
            if theirs is None or mine is None or theirs[1] != mine[1]:
                there = f"`{theirs[1]}`" if theirs else "nothing"
                here = f"`{mine[1]}`" if mine else "nothing"
                fact = f"it sends {here} where rank {programs[0].rank} sends {there}"
                yield Hazard(program.rank, mine[0] if mine else None, fact)
                break


def _communication(program: Program, stream: Stream) -> list[tuple[int, str]]:
    """Line and meaning of every collective; where it starts is each rank's own affair."""
    buckets = {bucket.name: bucket for bucket in program.buckets}
    found: list[tuple[int, str]] = []
    for place, line in _numbered(stream, ReduceStart):
        bucket = buckets.get(line.bucket)
        size = f" {bucket.numel} × {bucket.wire}" if bucket else ""
        found.append((place, f"reduce {line.bucket}{size} axis={line.axis}"))
    return found
