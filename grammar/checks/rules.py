"""Rules that claim the same ops, rules that can claim none, rules without a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sgplan.grammar.checks.view import View, place_of
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.written import WrittenBlock


def check_rules(view: View) -> Iterator[Diagnostic]:
    """Every rule by itself, and against the rules before it."""
    rules = list(view.all("fuse", "separate"))
    for block in rules:
        yield from _claims_nothing(block)
        yield from graphless(view, block)
        yield from _lonely(block)
    yield from same_ops(view, rules)


def same_ops(view: View, blocks: Iterable[WrittenBlock]) -> Iterator[Diagnostic]:
    """SG0601 for every block that selects what an earlier one has, with the same priority."""
    seen: list[WrittenBlock] = []
    for block in blocks:
        if not view.is_sure(block, "match", "in", "except", "model", "priority"):
            continue
        for earlier in seen:
            if _selection(earlier) == _selection(block) and _rank(earlier) == _rank(block):
                yield _same_ops(earlier, block)
                break
        seen.append(block)


def _selection(block: WrittenBlock) -> tuple[object, ...]:
    return tuple(block.value(name, None) for name in ("match", "in", "except", "model"))


def _rank(block: WrittenBlock) -> int:
    return block.value("priority", 0)


def _same_ops(earlier: WrittenBlock, block: WrittenBlock) -> Diagnostic:
    return Diagnostic(
        "SG0601",
        f"`{earlier.address}` and `{block.address}` claim the same ops",
        place_of(block, "match", "the same selection again"),
        (place_of(earlier, "match", "claimed here first"),),
        notes=("an op belongs to one rule; the higher `priority` takes it",),
        help="write a `priority` in one of them, or take one out",
    )


def _claims_nothing(block: WrittenBlock) -> Iterator[Diagnostic]:
    within, without = block.get("in"), block.get("except")
    if within is None or without is None:
        return
    if set(within.value) <= set(without.value):
        yield Diagnostic(
            "SG0602",
            f"`{block.address}` leaves out every module that it names",
            Label(without.value_span, "left out"),
            (Label(within.value_span, "named"),),
            help="narrow `except`",
        )


def _lonely(block: WrittenBlock) -> Iterator[Diagnostic]:
    pattern = block.get("match")
    if block.kind == "separate" and pattern is not None and len(pattern.value.steps) < 2:
        yield Diagnostic(
            "SG0613",
            f"`{block.address}` names what to keep apart, and not from what",
            Label(pattern.value_span, "one op has nothing to be kept apart from"),
            help=f"write `match = {pattern.value} -> aten.add`, with the op that reads it",
        )


def graphless(view: View, block: WrittenBlock) -> Iterator[Diagnostic]:
    """SG0521 for a block under an engine that makes no graph, or on a DDP that makes its own."""
    for kind, name, value, why, chosen, other in _GRAPHLESS:
        choice = view.speaking_for(kind, block)
        if choice is not None and choice.value(name, "auto") == value:
            yield Diagnostic(
                "SG0521",
                f"`{block.address}` needs a graph{why}",
                Label(block.span),
                (place_of(choice, name, f"{chosen} is chosen here"),),
                help=f"write `{name} = {other}`, or take the block out",
            )


_GRAPHLESS = (
    ("capture", "engine", "eager", ", and the engine makes none", "the engine", "inductor"),
    ("sync", "by", "stock", " of the plan, and stock DDP makes its own", "stock DDP", "auto"),
)
