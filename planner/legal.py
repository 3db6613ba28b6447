"""What may stand in a program, and after which pass: one table, checked after every pass.

A violation is a fault of ours, never the user's: the error names the pass and prints the program
before it. What ranks do together, and lifetimes over whole streams, is `safety.py`'s business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from sgplan.grammar.diagnostics import Diagnostic, Refused
from sgplan.planner.facts import EffectFact
from sgplan.planner.program import (
    Cast,
    Deliver,
    Free,
    Instruction,
    PhaseName,
    Program,
    ReduceStart,
    Run,
    Update,
    Wait,
)
from sgplan.planner.program_text import format_instruction, format_program

_Kind = TypeVar("_Kind", bound=Instruction)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an instruction kind may stand: in these phases, once that promise holds."""

    phases: frozenset[PhaseName]
    since: str


_BACKWARD: frozenset[PhaseName] = frozenset({"backward"})

PLACES: dict[type, Place] = {
    Run: Place(frozenset({"forward", "backward"}), "runs"),
    ReduceStart: Place(_BACKWARD, "reductions"),
    Wait: Place(_BACKWARD, "reductions"),
    Deliver: Place(_BACKWARD, "reductions"),
    Cast: Place(_BACKWARD, "wire"),
    Free: Place(_BACKWARD, "lifetimes"),
    Update: Place(frozenset({"update"}), "updates"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A sentence that must hold once `since` is promised; `check` yields what breaks it."""

    since: str
    check: Callable[[Program], Iterator[str]]


def _names_are_unique(program: Program) -> Iterator[str]:
    for what, names in (
        ("root", [r.name for r in program.roots]),
        ("graph", [g.name for g in program.graphs]),
        ("bucket", [b.name for b in program.buckets]),
    ):
        yield from (f"two {what}s named `{n}`" for n, count in Counter(names).items() if count > 1)


def _slots_fit(program: Program) -> Iterator[str]:
    for bucket in program.buckets:
        end = 0
        for slot in bucket.slots:
            if slot.offset < end:
                yield f"`{slot.parameter}` overlaps its neighbour in bucket `{bucket.name}`"
            count = 1
            for size in slot.shape:
                count *= size
            end = slot.offset + count
        if end > bucket.numel:
            yield f"bucket `{bucket.name}` is smaller than its gradients"


def _runs_name_graphs(program: Program) -> Iterator[str]:
    graphs = {graph.name: graph for graph in program.graphs}
    for line in _of(program, Run):
        graph = graphs.get(line.graph)
        if graph is None:
            yield f"`run` of the unknown graph `{line.graph}`"
        elif line.eager != (graph.direction == "eager"):
            yield f"`run {line.graph}` does not fit a graph of direction `{graph.direction}`"


def _roots_are_known(program: Program) -> Iterator[str]:
    known = {root.name for root in program.roots}
    named = [*(g.root for g in program.graphs), *(b.root for b in program.buckets)]
    yield from (f"the unknown root `{name}`" for name in dict.fromkeys(named) if name not in known)


def _lines_name_buckets(program: Program) -> Iterator[str]:
    known = {bucket.name for bucket in program.buckets}
    named = [
        *(line.bucket for line in (*_of(program, ReduceStart), *_of(program, Cast))),
        *(name for line in _of(program, Wait) for name in line.buckets),
        *(name for graph in program.graphs for name in graph.buckets),
    ]
    yield from (f"the unknown bucket `{name}`" for name in named if name not in known)


def _axes_exist(program: Program) -> Iterator[str]:
    axes = {axis for axis, _ in program.mesh}
    for line in _of(program, ReduceStart):
        if line.axis not in axes:
            yield f"`{format_instruction(line)}` names an axis that the mesh lacks"


def _ends_name_no_op(program: Program) -> Iterator[str]:
    for line in _of(program, ReduceStart):
        if line.when == "end" and line.after:
            yield f"`reduce.start {line.bucket}` is at the end and behind an op"


def _casts_fit(program: Program) -> Iterator[str]:
    buckets = {bucket.name: bucket for bucket in program.buckets}
    for line in _of(program, Cast):
        bucket = buckets[line.bucket]
        if {line.source, line.target} != {bucket.dtype, bucket.wire}:
            yield f"`{format_instruction(line)}` does not fit {bucket.dtype} and {bucket.wire}"


def _is_sealed(program: Program) -> Iterator[str]:
    if not program.plan or (program.buckets and not program.contract):
        yield "a digest is missing"


RULES: tuple[Rule, ...] = (
    Rule("buckets", _names_are_unique),
    Rule("buckets", _slots_fit),
    Rule("runs", _runs_name_graphs),
    Rule("runs", _roots_are_known),
    Rule("reductions", _lines_name_buckets),
    Rule("reductions", _axes_exist),
    Rule("reductions", _ends_name_no_op),
    Rule("wire", _casts_fit),
    Rule("digests", _is_sealed),
)


def lost_effects(before: Program, after: Program) -> Iterator[str]:
    """What a pass did to effects: those of a graph, and the order in which graphs have theirs."""
    graphs = {graph.name: graph for graph in after.graphs}
    for old in before.graphs:
        new = graphs.get(old.name)
        if new is None and old.effects:
            yield f"`{old.name}` is gone, and with it {effect_words(old.effects[0])}"
        elif new is not None and new.effects != old.effects:
            pairs = zip_longest(old.effects, new.effects)
            had, has = next((a, b) for a, b in pairs if a != b)
            yield f"effects of `{old.name}`: {effect_words(had)} became {effect_words(has)}"
    runs, now = _runs_with_effects(before), _runs_with_effects(after)
    if runs and runs != now:
        yield f"graphs with effects ran as {' '.join(runs)}, and run as {' '.join(now)} now"


def _runs_with_effects(program: Program) -> list[str]:
    """Graphs with effects, and eager ones, whose effects nobody knows, as they run."""
    graphs = {graph.name: graph for graph in program.graphs}
    lines = (line for line in _of(program, Run) if line.graph in graphs)
    return [n.graph for n in lines if n.eager or graphs[n.graph].effects]


def effect_words(effect: EffectFact | None) -> str:
    """`aten.bernoulli.p` of blocks.0.drop (rng:cpu)."""
    if effect is None:
        return "nothing"
    where = f" of {effect.module}" if effect.module else ""
    return f"`{effect.op}`{where} ({effect.touches})"


def violations(program: Program, promised: frozenset[str]) -> list[str]:
    """Everything that is not allowed in a program of which `promised` holds."""
    return [
        *_misplaced(program, promised),
        *(fault for rule in RULES if rule.since in promised for fault in rule.check(program)),
    ]


def _misplaced(program: Program, promised: frozenset[str]) -> Iterator[str]:
    for phase in program.phases:
        for line in phase.instructions:
            place = PLACES[type(line)]
            if phase.name not in place.phases:
                yield f"`{format_instruction(line)}` stands in phase `{phase.name}`"
            if place.since not in promised:
                yield f"`{format_instruction(line)}` stands before {place.since} are promised"


def _of(program: Program, kind: type[_Kind]) -> list[_Kind]:
    return [line for line in program.instructions() if isinstance(line, kind)]


def require(program: Program, before: Program, name: str, promised: frozenset[str]) -> None:
    """Raises unless the program that pass `name` made is legal.

    Raises:
        Refused: with SG0510, the pass, what it broke, and the listing before it.
    """
    faults = [*violations(program, promised), *lost_effects(before, program)]
    if faults:
        notes = (*faults, "the program before the pass:\n" + format_program(before, detail="full"))
        message = f"internal error in pass `{name}`: {faults[0]}"
        help_ = "this is a fault of sgplan, not of the plan: please report it with this listing"
        raise Refused([Diagnostic("SG0510", message, notes=notes, help=help_)])
