"""`--set kind.label.attr=value`: parsed as a value of the language, with its own places."""

from __future__ import annotations

from collections.abc import Sequence

from sgplan.grammar import ast
from sgplan.grammar.blocks import SPEC_OF
from sgplan.grammar.diagnostics import Diagnostic, Label, Refused
from sgplan.grammar.parse import parse_set
from sgplan.grammar.planfile import SETS_SOURCE
from sgplan.grammar.reading import Reader, unknown_block
from sgplan.grammar.scan import Places, through
from sgplan.grammar.written import WrittenBlock, lay_over


def read_sets(sets: Sequence[str], reader: Reader) -> tuple[WrittenBlock, ...]:
    """The blocks that the arguments amount to; a later one wins over an earlier."""
    text = "\n".join(sets)
    places = Places(SETS_SOURCE, text)
    blocks: list[WrittenBlock] = []
    start = 0
    for argument in sets:
        end = start + len(argument)
        try:
            assignment = parse_set(text, places, start, end)
            blocks += reader.blocks([_as_block(assignment)])
        except Refused as refused:
            reader.problems += refused.diagnostics
        start = end + 1
    return tuple(lay_over({}, blocks).values())


def _as_block(assignment: ast.Assignment) -> ast.Block:
    """The assignment as a block with one attribute."""
    kind, *label, name = assignment.path
    if kind.text not in SPEC_OF:
        raise Refused([unknown_block(kind.text, kind.span)])
    if len(label) > 1:
        too_many = Diagnostic(
            "SG0121",
            f"`{'.'.join(part.text for part in assignment.path)}` has too many parts",
            Label(through(label[1].span, name.span)),
            help="write `kind.attribute=value`, or `kind.label.attribute=value`",
        )
        raise Refused([too_many])
    attribute = ast.Attribute(name, assignment.value, assignment.span)
    text = ast.Text(label[0].text, label[0].span) if label else None
    head = through(kind.span, label[0].span) if label else kind.span
    return ast.Block(kind, text, (attribute,), assignment.span, head)
