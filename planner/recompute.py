"""What `recompute` blocks ask, root by root, and what became of it.

Pure: plan and facts in; requests, verdicts and lines of the listing out. Which ops of a graph are
computed again is found on the graph (`capture/recompute.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Pattern, Plan, Recompute
from sgplan.planner.facts import Facts, RecomputeFact
from sgplan.planner.families import FAMILIES
from sgplan.planner.graphs import Call, calls_of
from sgplan.planner.units import counted, human_bytes
from sgplan.planner.words import columns


@dataclass(frozen=True, slots=True)
class Request:
    """One `recompute` block as a graph is partitioned for it.

    Attributes:
        address: `recompute.blocks`.
        inside: module globs; empty for the whole graph.
        pattern: only ops at its sites are computed again; None for all.
        memory: what may be saved, as a share of what is saved without the block.
        every: how many of the modules that `inside` names are computed again together.
        priority: decides which block has an op that several select.
    """

    address: str
    inside: tuple[str, ...] = ()
    pattern: Pattern | None = None
    memory: float | None = None
    every: int | None = None
    priority: int = 0


def requests_of(plan: Plan, root: str | None) -> tuple[Request, ...]:
    """The requests for one root, higher priority first, then as written."""
    blocks = [block for block in plan.recomputes if block.model in (None, root)]
    blocks.sort(key=lambda b: (-(b.priority or 0), b.span.start if b.span else 0))
    return tuple(
        Request(b.address, b.in_, b.match, b.memory, b.every, b.priority or 0) for b in blocks
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one block in one graph that trains."""

    block: Recompute
    call: Call
    fact: RecomputeFact


def outcomes(plan: Plan, facts: Facts) -> tuple[Found, ...]:
    """Block by block, in every graph with a backward, variants included."""
    calls = [call for call in calls_of(facts) if call.backward is not None]
    return tuple(
        Found(block, call, fact)
        for block in plan.recomputes
        for call in calls
        for fact in call.forward.recomputed
        if fact.clause == block.address
    )


# --- verdicts ------------------------------------------------------------------------------------


def broken(plan: Plan, facts: Facts) -> list[Diagnostic]:
    """What a graph cannot do of what the plan asks: SG0601, SG0730, SG0732."""
    return [problem for found in outcomes(plan, facts) for problem in _broken(found)]


def idle(plan: Plan, facts: Facts) -> list[Diagnostic]:
    """SG0731 for every block that changed nothing, once everything that trains was captured.

    A family of ops may occur nowhere: then it is a note.
    """
    done = {found.block.address for found in outcomes(plan, facts) if found.fact.ops}
    said = {f.block.address for f in outcomes(plan, facts) if f.fact.objection or _over(f.fact)}
    blocks = [b for b in plan.recomputes if b.address not in done | said]
    return [_idle(block, list(outcomes(plan, facts))) for block in blocks]


def _broken(found: Found) -> Iterator[Diagnostic]:
    fact, block = found.fact, found.block
    if fact.rival:
        yield Diagnostic(
            "SG0601",
            f"`{fact.rival}` and `{block.address}` claim the same ops in {_where(found)}",
            _label(block, "in", "match"),
            notes=(f"the first of them is {fact.objection}",),
            help="write a `priority` in one of them, or narrow it",
        )
    elif fact.objection:
        yield Diagnostic(
            "SG0732",
            f"`{block.address}` would not repeat the forward of {_where(found)}",
            _label(block),
            notes=(fact.objection,),
            help="narrow it with `in` or `match`, or take it out",
        )
    elif _over(fact):
        assert fact.limit is not None
        least = 100 * fact.after / max(fact.before, 1)
        share = math.ceil(least) + 1
        instead = f"write `memory = {share}%`" if share < 100 else "leave `memory` out"
        yield Diagnostic(
            "SG0730",
            f"`{block.address}` cannot save as little in {_where(found)}",
            _label(block, "memory"),
            notes=(
                f"{human_bytes(fact.before)} are saved without it, {human_bytes(fact.limit)} may "
                f"be, and {human_bytes(fact.after)} ({least:.0f} %) are the least",
                "random masks, results of custom ops and what the selected ops read stay saved",
            ),
            help=f"{instead}, or select more with `in`",
        )


def _over(fact: RecomputeFact) -> bool:
    return fact.limit is not None and fact.after > fact.limit


def _idle(block: Recompute, found: list[Found]) -> Diagnostic:
    mine = [f.fact for f in found if f.block is block]
    saves = any(fact.before for fact in mine)
    if not mine:
        why = "no graph with a backward was captured for it"
    elif saves:
        why = "what its ops make is not saved, or cannot be computed again"
    else:
        why = "nothing that its ops make is saved for the backward"
    return Diagnostic(
        "SG0731",
        f"`{block.address}` changes nothing",
        _label(block, "in", "match"),
        notes=(why,),
        help="`sgplan plan --ops` lists what was captured; take the block out, or widen it",
        severity="note" if mine and not saves and _families_only(block) else "error",
    )


def _families_only(block: Recompute) -> bool:
    steps = () if block.match is None else block.match.steps
    return bool(steps) and all(s.op in FAMILIES for step in steps for s in step)


def _where(found: Found) -> str:
    return f"`fwd{found.call.suffix}` (`{found.call.forward.region}`)"


def _label(block: Recompute, *names: str) -> Label | None:
    spans = (block.origin(name) for name in names)
    span = next((span for span in spans if span is not None), block.span)
    return None if span is None else Label(span)


# --- listing -------------------------------------------------------------------------------------


def recompute_lines(plan: Plan, facts: Facts) -> list[str]:
    """For each block and graph: bytes saved of what it selects, without it and with it."""
    rows = [
        [
            f"  {found.block.address}",
            _asked(found.block),
            f"fwd{found.call.suffix}",
            f"{human_bytes(found.fact.before)} -> {human_bytes(found.fact.after)} saved",
            f"{counted(found.fact.ops, 'op')} computed again",
            f"# line {found.block.span.line}" if found.block.span else "",
        ]
        for found in outcomes(plan, facts)
        if found.call.variant == 0
    ]
    return ["recompute", *columns(rows)] if rows else []


def _asked(block: Recompute) -> str:
    if block.memory is not None:
        return f"memory = {block.memory * 100:g}%"
    return f"every = {block.every}modules" if block.every is not None else f"match = {block.match}"
