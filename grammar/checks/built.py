"""What the language has and this version cannot do yet: refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.blocks import SPEC_OF, BlockSpec
from sgplan.grammar.checks.view import NOT_BUILT, View
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.written import WrittenBlock


def check_built(view: View) -> Iterator[Diagnostic]:
    """One diagnostic for a block that is not built, else one for each such value."""
    for block in view.layer.values():
        spec = SPEC_OF[block.kind]
        if spec.built:
            yield from _values(block, spec)
        else:
            yield Diagnostic(
                NOT_BUILT,
                f"`{block.kind}` is not built yet",
                Label(block.span, f"the block that {spec.does}"),
                notes=("it was read and checked; no plan with it can run in this version",),
                help="write `use = off` in it, or take it out",
            )


def _values(block: WrittenBlock, spec: BlockSpec) -> Iterator[Diagnostic]:
    for setting in block.settings:
        attribute = spec.attribute(setting.name)
        if attribute is not None and attribute.unbuilt(setting.value):
            yield Diagnostic(
                NOT_BUILT,
                f"this value of `{block.kind}.{setting.name}` is not built yet",
                Label(setting.value_span),
                help=f"write `{setting.name} = {attribute.default}`, or take it out",
            )
