"""`override`: labels once, a condition, something to change. Sees the overrides, not a view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sgplan.grammar.checks.names import check_repeats
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.written import WrittenOverride


def check_overrides(
    overrides: Sequence[WrittenOverride], unread: Sequence[WrittenOverride]
) -> Iterator[Diagnostic]:
    """Every override by itself; `unread` are those with a condition that could not be read."""
    first: dict[str, WrittenOverride] = {}
    for override in overrides:
        yield from check_repeats(override.blocks)
        if override not in unread:
            yield from _pointless(override)
        earlier = first.setdefault(override.label, override)
        if earlier is not override:
            yield Diagnostic(
                "SG0221",
                f"there are two `override.{override.label}` blocks",
                Label(override.span, "the second one"),
                (Label(earlier.span, "the first one"),),
                help="give one of them another label",
            )


def _pointless(override: WrittenOverride) -> Iterator[Diagnostic]:
    if override.world is None and override.device is None:
        yield Diagnostic(
            "SG0231",
            f"override `{override.label}` has no condition",
            Label(override.span, "it would always hold"),
            help="write `world = 8..` or `device = cuda`, or move its blocks into the file",
        )
    elif not any(block.settings for block in override.blocks):
        yield Diagnostic(
            "SG0231",
            f"override `{override.label}` sets nothing",
            Label(override.span),
            help="write the blocks that change inside it, or take it out",
        )
