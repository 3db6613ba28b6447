"""`partition`: cuts and pins that fit the number of stages."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, missing, no_effect, no_effect_at_all, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.literals import Stage
from sgplan.grammar.written import WrittenBlock


def check_partition(view: View) -> Iterator[Diagnostic]:
    """The block against axis `pipe`, and its attributes against `by`."""
    block = view.one("partition")
    if block is None:
        return
    if view.pipe == 1:
        cure = "take it out, or declare more stages in `mesh`"
        yield no_effect_at_all(block, "axis `pipe` has one stage", cure)
    elif view.pipe is not None:
        yield from _pins(view, block, view.pipe)
        yield from _cuts(block, view.pipe)
    yield from _manner(view, block)


def _manner(view: View, block: WrittenBlock) -> Iterator[Diagnostic]:
    by = block.value("by", "metis")
    if by == "manual":
        because = place_of(block, "by", "the cuts are yours")
        yield from no_effect(block, ("balance", "cost"), "nothing is balanced", because)
        if not view.writes(block, "cuts"):
            cure = 'write `cuts = ["layers.6"]`, or another `by`'
            yield missing(block, "cuts", "`by = manual` takes the cuts from there", cure)
    elif view.is_sure(block, "by"):
        because = place_of(block, "by", "the cuts are found by themselves")
        yield from no_effect(block, ("cuts",), "only `by = manual` reads it", because)


def _pins(view: View, block: WrittenBlock, pipe: int) -> Iterator[Diagnostic]:
    setting = block.get("pin")
    if setting is None:
        return
    stages: tuple[Stage, ...] = setting.value
    first: dict[str, int] = {}
    for stage in stages:
        if stage.index >= pipe:
            yield _no_such_stage(view, block, stage, pipe)
        for glob in stage.globs:
            if first.setdefault(glob, stage.index) != stage.index:
                yield Diagnostic(
                    "SG0306",
                    f'`"{glob}"` is pinned to stages {first[glob]} and {stage.index}',
                    Label(setting.value_span),
                    help="pin it to one of them",
                )


def _no_such_stage(view: View, block: WrittenBlock, stage: Stage, pipe: int) -> Diagnostic:
    mesh = view.one("mesh")
    axis = mesh.get("pipe") if mesh is not None else None
    stages = "stages are 0 and 1" if pipe == 2 else f"stages are 0 to {pipe - 1}"
    return Diagnostic(
        "SG0304",
        f"`pin` names stage {stage.index}, but axis `pipe` has {pipe} stages",
        place_of(block, "pin", stages),
        () if axis is None else (Label(axis.span, f"axis `pipe` has size {pipe} here"),),
        notes=("every pinned stage must exist before the graph is cut",),
        help=f"write `stage({pipe - 1}, …)`, or declare `pipe = {stage.index + 1}`",
    )


def _cuts(block: WrittenBlock, pipe: int) -> Iterator[Diagnostic]:
    setting = block.get("cuts")
    if setting is None or any(sign in glob for glob in setting.value for sign in "*{"):
        return
    count = len(setting.value)
    if count != pipe - 1:
        yield Diagnostic(
            "SG0305",
            f"{count} {'cut makes' if count == 1 else 'cuts make'} {count + 1} stages, "
            f"but axis `pipe` has {pipe}",
            Label(setting.value_span),
            help=f"name {pipe - 1} {'module' if pipe == 2 else 'modules'}, "
            f"or declare `pipe = {count + 1}`",
        )
