"""What `fuse` and `separate` blocks ask of the compiler, root by root, and what became of it.

Pure: plan and facts in, rules, coverage and diagnostics out. Where a rule has its sites is found on
the graph (`capture/sites.py`); what is made of them there is `capture/steering.py`'s business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Fuse, MinGain, Pattern, Plan, Separate, Triton
from sgplan.planner.facts import Facts, GraphFact, Placed, SiteFact
from sgplan.planner.graphs import calls_of


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as a graph is searched for it.

    Attributes:
        address: `fuse.bias_gelu`.
        inside, outside: module globs; every op of a site lies in one of the first, if there are
            any, and in none of the second.
        where: conditions of `fuse`.
        kernel: what stands for the ops of a site; None leaves them to the compiler.
    """

    address: str
    kind: Literal["fuse", "separate"]
    pattern: Pattern
    inside: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    where: tuple[str | MinGain, ...] = ()
    kernel: Triton | None = None


def rules_of(plan: Plan, root: str | None) -> tuple[Rule, ...]:
    """The rules for one root, higher priority first, then as written."""
    blocks = [b for b in (*plan.fuses, *plan.separates) if b.model in (None, root)]
    blocks.sort(key=lambda b: (-(b.priority or 0), b.span.start if b.span else 0))
    return tuple(map(_rule, blocks))


def _rule(block: Fuse | Separate) -> Rule:
    fuses = isinstance(block, Fuse)
    return Rule(
        block.address,
        "fuse" if fuses else "separate",
        block.match,
        block.in_,
        block.except_,
        block.where if fuses else (),
        block.with_ if fuses and isinstance(block.with_, Triton) else None,
    )


_MISSED = ("missed", "rejected")


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of one rule on one rank.

    Attributes:
        sites: one for each place in the script, in graph order; a copy that the backward computes
            again stands only in `misses`.
        misses: sites, copies and variants included, where the compiler did not do it, or where the
            kernel computes something else.
        near: where the pattern begins and does not go on.
    """

    block: Fuse | Separate
    sites: tuple[SiteFact, ...]
    misses: tuple[SiteFact, ...]
    near: tuple[str, ...]

    @property
    def counts(self) -> Counter[str]:
        """Sites by outcome."""
        return Counter(site.outcome for site in self.sites)


def coverage(plan: Plan, facts: Facts) -> tuple[Coverage, ...]:
    """What became of every rule, in the order of the plan."""
    listed = list(_listed_graphs(facts))
    graphs = [graph for root in facts.roots for graph in root.graphs]
    found: list[Coverage] = []
    for block in sorted(
        (*plan.fuses, *plan.separates), key=lambda b: b.span.start if b.span else 0
    ):
        sites = {s.key: s for s in _sites(listed, block.address) if s.outcome != "recomputed"}
        misses = tuple(s for s in _sites(graphs, block.address) if s.outcome in _MISSED)
        near = [text for g in listed for rule, text in g.near if rule == block.address]
        found.append(Coverage(block, tuple(sites.values()), misses, tuple(dict.fromkeys(near))))
    return tuple(found)


def _listed_graphs(facts: Facts) -> Iterator[GraphFact]:
    for call in calls_of(facts):
        if call.variant == 0:
            yield call.forward
            if call.backward is not None:
                yield call.backward


def _sites(graphs: Iterable[GraphFact], rule: str) -> Iterator[SiteFact]:
    return (site for graph in graphs for site in graph.sites if site.rule == rule)


# --- verdicts ------------------------------------------------------------------------------------


def missed(plan: Plan, facts: Facts) -> list[Diagnostic]:
    """SG0606 for every rule that the compiler did not follow somewhere, SG0614 for bad kernels."""
    return [
        _rejected(found.block, found.misses[0])
        if found.misses[0].outcome == "rejected"
        else _missed(found)
        for found in coverage(plan, facts)
        if found.misses
    ]


def miscounted(plan: Plan, facts: Facts) -> list[Diagnostic]:
    """SG0607 and SG0608, once everything that trains was captured."""
    found: list[Diagnostic] = []
    for each in coverage(plan, facts):
        if not each.sites:
            found.append(_nowhere(each, any(root.graphs for root in facts.roots)))
        elif each.block.expect is not None and each.block.expect != len(each.sites):
            found.append(_miscounted(each, each.block.expect))
    return found


def place(site: SiteFact) -> str:
    """Where a site is, for people: its ops with their modules."""
    return " -> ".join(f"`{op}` of `{module or 'the model itself'}`" for op, module in site.ops)


def _missed(found: Coverage) -> Diagnostic:
    block, first = found.block, found.misses[0]
    verb = "fused" if isinstance(block, Fuse) else "kept apart"
    more = len(found.misses) - 1
    others = f" and at {more} more" if more else ""
    return Diagnostic(
        "SG0606",
        f"`{block.address}` is not {verb} at {place(first)}{others}",
        None if (span := block.origin("match") or block.span) is None else Label(span),
        notes=(f"the compiler's reason: {first.why}",),
        help="narrow it with `in` or `except`, or write `on_miss = warn`",
        severity="error" if block.on_miss == "error" else "warning",
    )


def no_kernel(block: Fuse, why: str) -> Diagnostic:
    """SG0614 for a kernel that is not there."""
    assert isinstance(block.with_, Triton)
    span = block.origin("with") or block.span
    return Diagnostic(
        "SG0614",
        f"`{block.with_.kernel}` of `{block.address}` cannot be used",
        None if span is None else Label(span),
        notes=(why,),
        help="a path is relative to the plan's folder",
    )


def rejected(plan: Plan, placed: Iterable[Placed]) -> list[Diagnostic]:
    """SG0614 for every kernel that computes something else and may not be left out."""
    found = {p.fact.rule: p.fact for p in placed if p.fact.outcome == "rejected"}
    blocks = [block for block in plan.fuses if block.address in found and block.on_miss == "error"]
    return [_rejected(block, found[block.address]) for block in blocks]


def _rejected(block: Fuse | Separate, first: SiteFact) -> Diagnostic:
    assert isinstance(block, Fuse)
    assert isinstance(block.with_, Triton)
    span = block.origin("with") or block.span
    return Diagnostic(
        "SG0614",
        f"`{block.with_.kernel}` may not stand for {place(first)}",
        None if span is None else Label(span),
        notes=tuple(first.why.splitlines()),
        help="mend the kernel, or take `with` out and let the compiler fuse the ops",
        severity="error" if block.on_miss == "error" else "warning",
    )


def _miscounted(found: Coverage, expect: int) -> Diagnostic:
    block, count = found.block, len(found.sites)
    if count > expect:
        fact = f"the first one too many is {place(found.sites[expect])}"
    elif found.near:
        fact = f"the pattern begins and does not go on at {found.near[0]}"
    else:
        fact = f"the last one is {place(found.sites[-1])}"
    span = block.origin("expect") or block.span
    return Diagnostic(
        "SG0607",
        f"`{block.address}` has {count} sites where {expect} are expected",
        None if span is None else Label(span),
        notes=(fact,),
        help=f"write `expect = {count}`, or narrow it with `in` or `except`",
    )


def _nowhere(found: Coverage, captured: bool) -> Diagnostic:
    block = found.block
    span = block.origin("match") or block.span
    near = tuple(f"it begins and does not go on at {text}" for text in found.near[:3])
    return Diagnostic(
        "SG0608",
        f"the pattern of `{block.address}` occurs nowhere",
        None if span is None else Label(span),
        notes=near
        or ("it was looked for in what was captured" if captured else "no graph was captured",),
        help="`sgplan plan --ops` lists what was captured",
    )
