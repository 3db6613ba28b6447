"""Names what is wrong with the spelling of one value, where the parser stopped.

Numbers in pieces, text without quotes, signs and habits of other languages. Like the rules of
`syntax_errors.py`, which knows the shape of items, each looks at one kind of mistake.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgplan.grammar.blocks import ATTRIBUTE_NAMES
from sgplan.grammar.diagnostics import Diagnostic, Label, Span
from sgplan.grammar.nearest import joined
from sgplan.grammar.scan import Token, through
from sgplan.grammar.spell import quoted
from sgplan.grammar.stop import Stop
from sgplan.grammar.units import UNITS, meant

# What editors and web pages make of a quotation mark.
_QUOTES = "“”„‟«»‘’‚‛`´"


def unquoted_glob(stop: Stop) -> Diagnostic | None:
    """`in = layers.*`, `in = layers.0.mlp`, `in = *`."""
    here, before = stop.here, stop.token(-1)
    starred = here.text in ("*", "**") and (before.text in ("=", ".", "[", ",", "(", "|", "->"))
    joined_up = before.span.end == here.span.start
    starred = starred or (here.text in ("*", "**") and joined_up)
    numbered = here.kind == "quantity" and before.text == "." and joined_up
    braced = here.text == "{" and before.text == "." and joined_up
    if not (starred or numbered or braced):
        return None
    place = _run_around(stop)
    text = _text_of(stop.tokens, place)
    return Diagnostic(
        "SG0109",
        f"the module glob `{text}` is not quoted",
        Label(place),
        help=f'write `"{text}"`',
    )


def _run_around(stop: Stop) -> Span:
    """The stretch of tokens without space around the stop that could be a module name."""
    first = last = stop.at
    while first > 0 and _same_run(stop.tokens[first - 1], stop.tokens[first]):
        first -= 1
    inside = 0
    while last + 1 < len(stop.tokens):
        inside += (stop.tokens[last].text == "{") - (stop.tokens[last].text == "}")
        following = stop.tokens[last + 1]
        joined_up = stop.tokens[last].span.end == following.span.start
        if not joined_up or (inside <= 0 and not _same_run(stop.tokens[last], following)):
            break
        last += 1
    return through(stop.tokens[first].span, stop.tokens[last].span)


def _same_run(left: Token, right: Token) -> bool:
    parts = ("name", "quantity")
    return left.span.end == right.span.start and all(
        token.kind in parts or token.text in (".", "*", "**", "{") for token in (left, right)
    )


def _text_of(tokens: Sequence[Token], place: Span) -> str:
    return "".join(token.text for token in tokens if place.start <= token.span.start < place.end)


def quantity_in_two(stop: Stop) -> Diagnostic | None:
    """`25 MiB`, `5 %`, `5 MiB/s`, `50 steps`."""
    at = next((i for i in (-1, -2) if stop.token(i).kind == "quantity"), None)
    if at is None:
        return None
    number, *parts = (stop.token(at + i) for i in range(4))
    # A unit is one word, or has a slash in front or in the middle.
    length = 2 if parts[0].text == "/" else 3 if parts[1].text == "/" else 1
    unit = "".join(part.text for part in parts[:length])
    if unit not in UNITS and not meant(unit):
        return None
    # `keep = 3 steps 0..9`: an attribute that lacks its `=`.
    named = unit in ATTRIBUTE_NAMES and stop.here.text not in ATTRIBUTE_NAMES
    if named and stop.here is not parts[0] and stop.begins_value(0):
        return None
    last = parts[length - 1]
    spellings = [unit] if unit in UNITS else meant(unit)
    return Diagnostic(
        "SG0108",
        "a quantity is written without a space",
        Label(through(number.span, last.span), "number and unit are apart"),
        help=f"write {joined(number.text + spelling for spelling in spellings)}",
    )


def number_in_pieces(stop: Stop) -> Diagnostic | None:
    """`.5MiB`, `1,000MiB`."""
    if stop.here.text == "." and stop.token(-1).text in ("=", "[", ",", "("):
        first, last = stop.here, stop.token(1)
        cure, why = f"0.{last.text}", "it starts with a digit"
    elif stop.here.kind == "quantity" and stop.token(-1).text == ",":
        first, last = stop.token(-2), stop.here
        cure, why = first.text + last.text, "it holds no comma"
    else:
        return None
    apart = last.span.start - first.span.end != (last is stop.here)
    if apart or last.kind != "quantity" or (last is stop.here and first.kind != "quantity"):
        return None
    return Diagnostic(
        "SG0204",
        f"`{_text_of(stop.tokens, through(first.span, last.span))}` is not a number",
        Label(through(first.span, last.span), why),
        help=f"write `{cure}`",
    )


def text_without_quotes(stop: Stop) -> Diagnostic | None:
    """`to = ./ckpt`, `is = train:GPT`, `listen = 127.0.0.1:80`."""
    if stop.here.text not in ("/", ":", ".", "~", "\\", "@"):
        return None
    first = last = stop.at
    while first > 0 and _touch(stop.tokens[first - 1], stop.tokens[first]):
        first -= 1
    while last + 1 < len(stop.tokens) and _touch(stop.tokens[last], stop.tokens[last + 1]):
        last += 1
    place = through(stop.tokens[first].span, stop.tokens[last].span)
    before = stop.tokens[first - 1].text if first else ""
    if before not in ("=", "[", ",", "(") or first == last:
        return None
    if stop.here.text == "." and first != stop.at:
        return None  # A dotted name, which may be an op.
    text = _text_of(stop.tokens, place)
    return Diagnostic(
        "SG0116", f"`{text}` is not quoted", Label(place), help=f"write `{quoted(text)}`"
    )


def _touch(left: Token, right: Token) -> bool:
    """Whether no space parts the tokens, and neither belongs to what stands around a value."""
    around = ("{", "}", "[", "]", "(", ")", "=", ",", ";")
    apart = left.span.end != right.span.start
    return not apart and left.text not in around and right.text not in around


def foreign_comment(stop: Stop) -> Diagnostic | None:
    """`// so`, `/* so */`, `-- so`."""
    here, behind = stop.here, stop.token(1)
    joined_up = here.span.end == behind.span.start
    if not joined_up or here.text + behind.text not in ("//", "/*", "--", "/**"):
        return None
    return Diagnostic(
        "SG0116",
        f"`{here.text}{behind.text}` does not begin a comment",
        Label(through(here.span, behind.span)),
        help="write `#`: a comment goes to the end of the line",
    )


def foreign_arrow(stop: Stop) -> Diagnostic | None:
    """`bias => norm`, `bias > norm`, `bias → norm`, `bias - > norm`."""
    here, behind = stop.here, stop.token(1)
    two = here.text in ("=", "-") and behind.text == ">"
    if not (two or here.text in (">", "→", "⇒")) or not stop.ends_value(-1):
        return None
    place = through(here.span, behind.span) if two else here.span
    gap = " " * (behind.span.start - here.span.end)
    return Diagnostic(
        "SG0116",
        f"`{here.text + gap + behind.text if two else here.text}` is no arrow of the language",
        Label(place),
        help="write `->` for the flow of data",
    )


def strange_character(stop: Stop) -> Diagnostic | None:
    text = stop.here.text
    if stop.here.kind != "other" or not text:
        return None
    if text in _QUOTES:
        return Diagnostic(
            "SG0105",
            f"`{text}` does not begin a string",
            Label(stop.here.span),
            help='write `"`',
        )
    shown = f"`{text}`" if text.isprintable() else f"the character U+{ord(text):04X}"
    return Diagnostic(
        "SG0116",
        f"{shown} has no meaning in the language",
        Label(stop.here.span),
        help="take it out, or quote the text that holds it",
    )


# Every rule here but `quantity_in_two`, which must not come before a missing value is looked for.
VALUE_RULES = (
    foreign_comment,
    foreign_arrow,
    unquoted_glob,
    number_in_pieces,
    text_without_quotes,
    strange_character,
)
