"""`precision`: ranges of steps that meet without overlap, settings that fit the format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

from sgplan.grammar.checks.rules import graphless
from sgplan.grammar.checks.view import NOT_BUILT, View, no_effect, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label, Span
from sgplan.grammar.literals import Dynamic, Interval
from sgplan.grammar.written import WrittenBlock

_EVER = Interval(0, None)


def check_precision(view: View) -> Iterator[Diagnostic]:
    """Rules for the same modules and ops, grouped; then each by itself."""
    groups: dict[tuple[object, ...], list[WrittenBlock]] = defaultdict(list)
    for block in view.all("precision"):
        yield from _idle(block)
        if _changes_graph(block):
            yield from graphless(view, block)
        if view.is_sure(block, "steps", "match", "in", "except", "model", "priority"):
            names = ("match", "in", "except", "model", "priority")
            groups[tuple(block.value(name, None) for name in names)].append(block)
    for blocks in groups.values():
        for earlier, later in combinations(blocks, 2):
            yield from _overlap(earlier, later)
        yield from _gaps(blocks)
    yield from _stored(view)


def _steps(block: WrittenBlock) -> tuple[int, float]:
    steps: Interval = block.value("steps", _EVER)
    return steps.low or 0, float("inf") if steps.high is None else steps.high


def _overlap(earlier: WrittenBlock, later: WrittenBlock) -> Iterator[Diagnostic]:
    first, last = (
        max(_steps(earlier)[0], _steps(later)[0]),
        min(_steps(earlier)[1], _steps(later)[1]),
    )
    if first > last:
        return
    shared = f"step {first}" if first == last else f"the steps from {first} on"
    if first < last < float("inf"):
        shared = f"steps {first} to {last:.0f}"
    yield Diagnostic(
        "SG0701",
        f"`{earlier.address}` and `{later.address}` both hold for {shared}",
        place_of(later, "steps", "" if later.get("steps") else "holds for every step"),
        (place_of(earlier, "steps", "" if earlier.get("steps") else "holds for every step"),),
        notes=("a range includes both ends",),
        help="let one begin a step after the other ends, or write a `priority`",
    )


def _gaps(blocks: list[WrittenBlock]) -> Iterator[Diagnostic]:
    """Steps between two ranges that no rule names: as written there, which may be meant."""
    ordered = sorted(blocks, key=_steps)
    for before, after in pairwise(ordered):
        end, start = _steps(before)[1], _steps(after)[0]
        if start > end + 1:
            missing = (
                f"step {start - 1}" if start == end + 2 else f"steps {end + 1:.0f} to {start - 1}"
            )
            yield Diagnostic(
                "SG0702",
                f"no `precision` block holds for {missing}",
                place_of(after, "steps", f"begins at {start}"),
                (place_of(before, "steps", f"ends at {end:.0f}"),),
                notes=("they run in the formats of the script",),
                severity="note",
            )


def _changes_graph(block: WrittenBlock) -> bool:
    """Whether it puts casts or a loss scale into graphs."""
    scale = block.value("loss_scale", "auto")
    return block.value("compute", "as_written") != "as_written" or not isinstance(scale, str)


def _stores(block: WrittenBlock) -> bool:
    """Whether it says how parameters are stored: in 16 bits, or with masters of their own."""
    return (
        block.value("params", "as_written") != "as_written" or block.value("master", None) == "fp32"
    )


def _stored(view: View) -> Iterator[Diagnostic]:
    """How parameters are stored is one thing for a whole model and a whole run."""
    by_model: dict[object, list[WrittenBlock]] = defaultdict(list)
    for block in view.all("precision"):
        if view.is_sure(block, "steps", "match", "in", "except", "model", "params", "master"):
            by_model[block.value("model", None)].append(block)
    for blocks in by_model.values():
        storing = [block for block in blocks if _stores(block)]
        for block in storing:
            for name in ("match", "in", "except"):
                if (limit := block.get(name)) is not None:
                    yield _one_storage(block, limit.span, "only a part of the model")
        if not storing:
            continue
        first = min(storing, key=_steps)
        if _steps(first)[0] > 0:
            yield _one_storage(first, place_of(first, "steps").span, "not from the first step")
        for block in blocks:
            if block is not first and _storage(block) != _storage(first):
                yield _one_storage(block, block.span, f"not as `{first.address}` has it")


def _storage(block: WrittenBlock) -> tuple[str, str]:
    return block.value("params", "as_written"), block.value("master", "fp32")


def _one_storage(block: WrittenBlock, span: Span, why: str) -> Diagnostic:
    return Diagnostic(
        NOT_BUILT,
        f"storage of parameters that changes, as in `{block.address}`, is not built yet",
        Label(span, why),
        notes=("parameters are stored in one way, for a whole model and a whole run",),
        help="write the same `params` and `master` in every `precision` block of the model, "
        "from step 0, without `match`, `in` and `except`",
    )


def _idle(block: WrittenBlock) -> Iterator[Diagnostic]:
    compute = block.value("compute", "as_written")
    written = block.get("compute")
    because = None if written is None else Label(written.span, "computed in this format")
    scale = block.value("loss_scale", "auto")
    if compute in ("bf16", "fp32") and isinstance(scale, int | float | Dynamic):
        yield from no_effect(block, ("loss_scale",), "only `fp16` needs a loss scale", because)
    if compute in ("as_written", "fp32"):
        yield from no_effect(block, ("keep_fp32",), "nothing is lowered", because)
    if not _stores(block):
        yield from no_effect(block, ("master",), "parameters are kept as the script has them", None)
