"""`schedule`: microbatches that fill the stages."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View, missing, no_effect_at_all, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.literals import Interleaved
from sgplan.grammar.written import WrittenBlock


def check_schedule(view: View) -> Iterator[Diagnostic]:
    """The block against axis `pipe`."""
    block, pipe = view.one("schedule"), view.pipe
    if pipe is None:
        return
    if block is None:
        yield from _no_schedule(view, pipe)
        return
    if pipe == 1:
        cure = "take it out, or declare more stages in `mesh`"
        yield no_effect_at_all(block, "axis `pipe` has one stage", cure)
        return
    if not view.writes(block, "microbatches"):
        cure = f"write `microbatches = {2 * pipe}`"
        yield missing(block, "microbatches", f"axis `pipe` has {pipe} stages", cure)
    yield from _too_few(block, pipe)


def _no_schedule(view: View, pipe: int) -> Iterator[Diagnostic]:
    mesh = view.one("mesh")
    if pipe > 1 and mesh is not None:
        yield Diagnostic(
            "SG0401",
            f"axis `pipe` has {pipe} stages, and no `schedule` says how many microbatches",
            place_of(mesh, "pipe"),
            help=f"write `schedule {{ microbatches = {2 * pipe} }}`",
        )


def _too_few(block: WrittenBlock, pipe: int) -> Iterator[Diagnostic]:
    setting = block.get("microbatches")
    if setting is None:
        return
    kind = block.value("kind", "1f1b")
    if isinstance(kind, Interleaved) and setting.value % pipe:
        yield Diagnostic(
            "SG0403",
            f"{setting.value} microbatches do not go round {pipe} stages evenly",
            Label(setting.value_span),
            (place_of(block, "kind", "an interleaved schedule goes round the stages"),),
            help=f"write a multiple of {pipe}",
        )
    elif setting.value < pipe:
        yield Diagnostic(
            "SG0402",
            f"{setting.value} microbatches cannot fill {pipe} stages",
            Label(setting.value_span),
            help=f"write {pipe} or more",
        )
