"""Names across blocks: every block once, required attributes there, models known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sgplan.grammar.blocks import SPEC_OF
from sgplan.grammar.checks.view import View, alike, missing
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.nearest import joined, nearest
from sgplan.grammar.written import WrittenBlock

# Of these one may stand for the models that no other names.
_PER_MODEL = ("capture", "sync", "update")


def check_repeats(blocks: Iterable[WrittenBlock]) -> Iterator[Diagnostic]:
    """Two blocks of one address, in one file or one override."""
    for earlier, block in alike(blocks, lambda block: block.key):
        labelled = block.label is not None
        yield Diagnostic(
            "SG0221",
            f"there are two `{block.address}` blocks",
            Label(block.span, "the second one"),
            (Label(earlier.span, "the first one"),),
            help="give one of them another label" if labelled else _one_of(block.kind),
        )


def _one_of(kind: str) -> str:
    if SPEC_OF[kind].label == "optional":
        return "write their attributes into one block, or give each a label and a `model`"
    return "write their attributes into one block"


def check_required(view: View) -> Iterator[Diagnostic]:
    """Attributes that a block cannot do without."""
    for block in view.layer.values():
        for spec in SPEC_OF[block.kind].attributes:
            if spec.required and not view.writes(block, spec.name):
                example = f"{spec.name} = {spec.type.example}"
                why = f"`{spec.name}` has no default"
                yield missing(block, spec.name, why, f"write `{example}`")


def check_models(view: View) -> Iterator[Diagnostic]:
    """`model = "G"` names a `model` block; one block a model for each job."""
    known = [block.label for block in view.all("model") if block.label is not None]
    for block in view.layer.values():
        setting = block.get("model")
        if setting is not None and setting.value not in known:
            close = nearest(setting.value, known)
            have = joined(known, "and") or "none"
            cure = f'write `"{close}"`' if close else f'write `model "{setting.value}" {{ … }}` too'
            yield Diagnostic(
                "SG0222",
                f"no `model` block is called `{setting.value}`",
                Label(setting.value_span, f"the plan names {have}"),
                help=cure,
            )
    for kind in _PER_MODEL:
        yield from _one_per_model(view, kind)


def _one_per_model(view: View, kind: str) -> Iterator[Diagnostic]:
    sure = (block for block in view.all(kind) if view.is_sure(block, "model"))
    for earlier, block in alike(sure, lambda block: ("model", block.value("model", None))):
        model = block.value("model", None)
        whom = "every model" if model is None else f"model `{model}`"
        yield Diagnostic(
            "SG0233",
            f"`{earlier.address}` and `{block.address}` both speak for {whom}",
            Label(block.span, "the second one"),
            (Label(earlier.span, "the first one"),),
            help='write `model = "…"` in one of them'
            if model is None
            else "write their attributes into one block",
        )
