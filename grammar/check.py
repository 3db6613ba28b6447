"""Syntax tree to checked plan: every rule that needs no graph, all independent errors in one run.

This module knows the order of the stages and which combinations of overrides exist; the rules
themselves are in `reading.py` and `checks/`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sgplan.grammar import ast
from sgplan.grammar.checks.lets import check_lets, check_uses
from sgplan.grammar.checks.names import check_repeats
from sgplan.grammar.checks.override import check_overrides
from sgplan.grammar.checks.registry import CHECKS
from sgplan.grammar.checks.view import NO_EFFECT, NOT_BUILT, View
from sgplan.grammar.diagnostics import Diagnostic, Refused, Span, has_errors
from sgplan.grammar.parse import parse
from sgplan.grammar.planfile import SETS_SOURCE, Let, PlanFile
from sgplan.grammar.reading import Reader
from sgplan.grammar.sets import read_sets
from sgplan.grammar.written import Key, WrittenOverride, override_conflicts

_DEVICES = ("cpu", "cuda")


def check_text(
    text: str, name: str, sets: Sequence[str] = (), world: int | None = None
) -> tuple[PlanFile | None, list[Diagnostic]]:
    """Parse and check one file; a syntax error is a diagnostic like any other."""
    try:
        document = parse(text, name)
    except Refused as refused:
        return None, list(refused.diagnostics)
    return check(document, sets, world)


def check(
    document: ast.Document, sets: Sequence[str] = (), world: int | None = None
) -> tuple[PlanFile | None, list[Diagnostic]]:
    """The checked plan, None when there are errors; and every diagnostic, in order of place.

    Args:
        document: the parsed file.
        sets: arguments of `--set`, `kind.label.attr=value` each.
        world: the number of ranks, when it is known.
    """
    lets = tuple(item for item in document.items if isinstance(item, ast.Let))
    endless = [*check_uses(lets)]
    problems = [*check_lets(lets), *endless]
    if endless:
        return None, sorted(problems, key=_place)
    reader = Reader({let.name.text: let.value for let in lets})
    plan = _read(document, lets, sets, reader)
    problems += reader.problems
    unread = [o for o in plan.overrides if any(key == o.key for key, _ in reader.broken)]
    problems += check_repeats(plan.blocks)
    problems += check_overrides(plan.overrides, unread)
    readable = replace(plan, overrides=tuple(o for o in plan.overrides if o not in unread))
    problems += _check_views(readable, frozenset(reader.broken), world)
    ordered = sorted(_distinct(problems), key=_place)
    return (None if has_errors(ordered) else plan), ordered


def sources_of(text: str, name: str, sets: Sequence[str]) -> dict[str, str]:
    """Name and text of everything that a diagnostic of `check` may point into."""
    return {name: text, SETS_SOURCE: "\n".join(sets)}


def _read(
    document: ast.Document, lets: tuple[ast.Let, ...], sets: Sequence[str], reader: Reader
) -> PlanFile:
    items = document.items
    return PlanFile(
        source=document.source,
        text=document.text,
        blocks=reader.blocks(item for item in items if isinstance(item, ast.Block)),
        overrides=tuple(reader.override(item) for item in items if isinstance(item, ast.Override)),
        sets=read_sets(sets, reader),
        sets_text="\n".join(sets),
        lets=tuple(
            Let(let.name.text, document.text[let.value.span.start : let.value.span.end], let.span)
            for let in lets
        ),
    )


def _combinations(plan: PlanFile, world: int | None) -> list[tuple[WrittenOverride, ...]]:
    """Every set of overrides that some world and device makes active, without repeats."""
    edges = {1}
    for override in plan.overrides:
        if override.world is not None:
            edges.add(override.world.low or 1)
            if override.world.high is not None:
                edges.add(override.world.high + 1)
    worlds = sorted(edges) if world is None else [world]
    found = {
        tuple(override for override in plan.overrides if override.holds(size, device)): None
        for size in worlds
        for device in _DEVICES
    }
    return list(found)


def _check_views(
    plan: PlanFile, broken: frozenset[tuple[Key, str]], world: int | None
) -> list[Diagnostic]:
    problems: list[Diagnostic] = []
    idle: dict[Span, list[Diagnostic]] = defaultdict(list)
    seen: dict[Span, int] = defaultdict(int)
    for active in _combinations(plan, world):
        problems += override_conflicts(active)
        for version in (plan, replace(plan, sets=())) if plan.sets else (plan,):
            view = View(version.merged(active), broken, world)
            for span in _settings(view):
                seen[span] += 1
            for problem in _run(view):
                if problem.code == NO_EFFECT and problem.primary is not None:
                    idle[problem.primary.span].append(problem)
                elif version is plan:
                    problems.append(problem)
    # Without effect in one world may be the point of an override: only nowhere is a mistake.
    problems += [found[0] for span, found in idle.items() if len(found) == seen[span]]
    return problems


def _settings(view: View) -> Iterator[Span]:
    for block in view.layer.values():
        yield block.span
        yield from (setting.span for setting in block.settings)


def _run(view: View) -> Iterator[Diagnostic]:
    for rule in CHECKS:
        yield from rule(view)


def _distinct(problems: Iterable[Diagnostic]) -> list[Diagnostic]:
    """One diagnostic a mistake, though several views show it."""
    found = {(p.code, p.message, p.primary and p.primary.span): p for p in reversed([*problems])}
    return list(found.values())


def _place(problem: Diagnostic) -> tuple[bool, bool, int]:
    """Mistakes before what is not built, the file before `--set`, then by place."""
    span = None if problem.primary is None else problem.primary.span
    from_set = span is not None and span.source == SETS_SOURCE
    return (problem.code == NOT_BUILT, from_set, 0 if span is None else span.start)
