"""Names what is wrong where the parser stopped, from the tokens around that place.

One table of rules, tried in order; each looks at one kind of mistake and returns its diagnostic or
nothing. This module knows the grammar only as far as naming faults needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgplan.grammar.blocks import ATTRIBUTE_NAMES, KINDS, SPEC_OF, blocks_with
from sgplan.grammar.diagnostics import Diagnostic, Label, Span
from sgplan.grammar.nearest import joined, nearest
from sgplan.grammar.scan import Places, Token, through
from sgplan.grammar.units import UNITS, meant

ITEM_WORDS = (*KINDS, "let", "override")
CLOSER = {"{": "}", "[": "]", "(": ")"}


@dataclass(frozen=True, slots=True)
class _Stop:
    """Where the parser stopped: `tokens[at]` is the first one that does not fit."""

    tokens: Sequence[Token]
    at: int
    places: Places

    def token(self, offset: int) -> Token:
        """The token at that distance; an empty one outside the text."""
        index = self.at + offset
        if 0 <= index < len(self.tokens):
            return self.tokens[index]
        end = self.tokens[-1].span.end if self.tokens else 0
        return Token("other", "", self.places.span(end, end))

    @property
    def here(self) -> Token:
        return self.token(0)

    @property
    def open(self) -> list[int]:
        """Indices of the brackets that are open here, outermost first."""
        stack: list[int] = []
        for index, token in enumerate(self.tokens[: self.at]):
            if token.text in CLOSER:
                stack.append(index)
            elif token.text in CLOSER.values() and stack:
                stack.pop()
        return stack

    @property
    def in_block(self) -> bool:
        """Whether attributes may stand here."""
        stack = self.open
        return bool(stack) and self.tokens[stack[-1]].text == "{"

    @property
    def kind(self) -> str:
        """The kind of the block that is open here, empty outside of one."""
        stack = self.open
        return self.head_tokens(stack[0])[0].text if stack else ""

    def head_tokens(self, brace: int) -> Sequence[Token]:
        """Kind and label in front of an opening brace, and the brace."""
        start = brace
        if start > 0 and self.tokens[start - 1].kind == "string":
            start -= 1
        if start > 0 and self.tokens[start - 1].kind == "name":
            start -= 1
        return self.tokens[start : brace + 1]

    def ends_value(self, offset: int) -> bool:
        """Whether a value may end with that token."""
        token = self.token(offset)
        return token.kind in ("name", "quantity", "string") or token.text in ("]", ")")

    def head(self, brace: int) -> Span:
        """Where the head of a block stands, its brace included."""
        tokens = self.head_tokens(brace)
        return through(tokens[0].span, tokens[-1].span)


def diagnose(tokens: Sequence[Token], at: int, places: Places) -> Diagnostic:
    """The diagnostic for a text whose token `at` does not fit."""
    stop = _Stop(tokens, at, places)
    return next(found for rule in _RULES if (found := rule(stop)) is not None)


def _block_inside_block(stop: _Stop) -> Diagnostic | None:
    """`sync { … update {`: the first brace is still open."""
    label = stop.here.kind == "string"
    if not (stop.in_block and (stop.here.text == "{" or (label and stop.token(1).text == "{"))):
        is_let = stop.token(-1).text in ("let", "override") and stop.here.kind in ("name", "string")
        if not (stop.in_block and is_let):
            return None
    inner = stop.token(-1)
    if inner.kind != "name" or stop.token(-2).text == "=":
        return None
    brace = stop.open[-1]
    return Diagnostic(
        "SG0104",
        f"`{inner.text}` begins inside a block that is not closed",
        Label(stop.head(brace), "this block is still open"),
        (Label(inner.span, "begins here"),),
        help="close the first block with `}` before it",
    )


def _unclosed(stop: _Stop) -> Diagnostic | None:
    """The text ends, or another bracket closes, while one is open."""
    stack = stop.open
    closes = stop.here.text in CLOSER.values()
    if not stack or (stop.here.text and not closes) or stop.token(-1).text == "=":
        return None
    opener = stop.tokens[stack[-1]]
    closer = CLOSER[opener.text]
    if stop.here.text == closer:
        return None
    place = stop.head(stack[-1]) if opener.text == "{" else opener.span
    return Diagnostic(
        "SG0104",
        f"`{opener.text}` is never closed",
        Label(place, "opened here"),
        (Label(stop.here.span, f"`{closer}` is missing before this"),) if closes else (),
        help=f"close it with `{closer}`",
    )


def _missing_value(stop: _Stop) -> Diagnostic | None:
    """`bucket =` with nothing behind it; the next attribute was read as its value."""
    behind = stop.here.text in ("=", "{") or stop.here.kind in ("name", "string")
    item = stop.token(-1).text in ITEM_WORDS or stop.here.text == "="
    if behind and item and stop.token(-2).text == "=" and stop.token(-1).kind == "name":
        name, equals = stop.token(-3), stop.token(-2)
    elif stop.token(-1).text == "=" and stop.here.text in ("}", ",", "", ")", "]"):
        name, equals = stop.token(-2), stop.token(-1)
    else:
        return None
    if name.kind != "name":
        return None
    return Diagnostic(
        "SG0103",
        f"`{name.text}` has no value",
        Label(through(name.span, equals.span), "nothing stands behind `=`"),
        help=f"write a value, or leave `{name.text}` out for its default"
        if stop.in_block
        else f"write `{name.text} = …`, or take the line out",
    )


def _unquoted_glob(stop: _Stop) -> Diagnostic | None:
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


def _run_around(stop: _Stop) -> Span:
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


def _quantity_in_two(stop: _Stop) -> Diagnostic | None:
    """`25 MiB`, `5 %`."""
    unit = stop.here if stop.here.text in ("%", "/") else stop.token(-1)
    number = stop.token(-1) if unit is stop.here else stop.token(-2)
    known = unit.text in UNITS or bool(meant(unit.text)) or unit.text == "/"
    if number.kind != "quantity" or not known or unit.text in ATTRIBUTE_NAMES:
        return None
    end = stop.token(1) if unit.text == "/" else unit
    spelt = number.text + unit.text + (end.text if end is not unit else "")
    return Diagnostic(
        "SG0108",
        "a quantity is written without a space",
        Label(through(number.span, end.span), "number and unit are apart"),
        help=f"write `{spelt}`",
    )


def _attribute_outside(stop: _Stop) -> Diagnostic | None:
    """`bucket = 25MiB` outside any block, and `sync = { … }`."""
    name = stop.token(-1)
    if stop.here.text != "=" or name.kind != "name" or stop.open:
        return None
    if stop.token(1).text == "{":
        return Diagnostic(
            "SG0113",
            f"block `{name.text}` is written like an attribute",
            Label(stop.here.span, "blocks have no `=`"),
            help=f"write `{name.text} {{ … }}`",
        )
    homes = blocks_with(name.text)
    return Diagnostic(
        "SG0111",
        f"attribute `{name.text}` stands outside a block",
        Label(name.span),
        help=f"write it inside {joined(homes)}" if homes else f"write `let {name.text} = …`",
    )


def _nothing_to_close(stop: _Stop) -> Diagnostic | None:
    if stop.here.text not in ("}", "]", ")") or stop.open:
        return None
    return Diagnostic(
        "SG0112",
        f"`{stop.here.text}` closes nothing",
        Label(stop.here.span, "no bracket is open here"),
        help="take it out",
    )


def _block_head(stop: _Stop) -> Diagnostic | None:
    """A name at depth 0 that no brace or quoted label follows."""
    name, here = stop.token(-1), stop.here
    if name.text == "override" and here.text == "{":
        return Diagnostic(
            "SG0113",
            "`override` has no label",
            Label(name.span),
            help='write `override "name" { … }`',
        )
    if stop.open or name.kind not in ("name", "string") or name.text in ("let", "sgplan"):
        return None
    same_line = here.span.line == name.span.line
    if here.kind == "name" and stop.token(1).text == "{" and same_line:
        return Diagnostic(
            "SG0113",
            f"the label `{here.text}` is not quoted",
            Label(here.span),
            help=f'write `{name.text} "{here.text}"`',
        )
    if name.kind == "name" and stop.token(-2).text == "let":
        return Diagnostic(
            "SG0110",
            f"`let {name.text}` has no `=`",
            Label(name.span),
            help=f"write `let {name.text} = …`",
        )
    kind = name if name.kind == "name" else stop.token(-2)
    if kind.text not in SPEC_OF and kind.text != "override":
        return None
    return Diagnostic(
        "SG0113",
        f"block `{kind.text}` has no body",
        Label(through(kind.span, name.span), "`{` is missing behind this"),
        help=f"write `{kind.text} {{ }}`, with its attributes between the braces",
    )


def _bad_separator(stop: _Stop) -> Diagnostic | None:
    here, before = stop.here, stop.token(-1)
    if here.text == ":" and before.kind == "name":
        return Diagnostic(
            "SG0110",
            f"`{before.text}` is followed by `:`",
            Label(here.span, "an attribute has `=`"),
            help=f"write `{before.text} = {stop.token(1).text}`",
        )
    if here.text in (";", ",") and (
        stop.ends_value(-1) or before.text in ("{", "[", "(", ",", "}")
    ):
        return Diagnostic(
            "SG0114",
            f"this `{here.text}` separates nothing",
            Label(here.span),
            help="take it out" if here.text == "," else "take it out: a space is enough",
        )
    return None


def _missing_equals(stop: _Stop) -> Diagnostic | None:
    """`overlap prefer`."""
    name = stop.token(-1)
    if not stop.in_block or name.kind != "name" or stop.here.text == "=":
        return None
    starts_value = stop.here.kind in ("name", "quantity", "string") or stop.here.text == "["
    fresh = stop.token(-2).text in ("{", ",") or name.text in ATTRIBUTE_NAMES
    if not fresh or stop.token(-2).text == "=":
        return None
    if not starts_value:
        return Diagnostic(
            "SG0103",
            f"`{name.text}` has no value",
            Label(name.span, "a name alone says nothing"),
            help=f"write `{name.text} = …`, or take it out",
        )
    return Diagnostic(
        "SG0110",
        f"`{name.text}` and its value are not joined",
        Label(through(name.span, stop.here.span), "`=` is missing between them"),
        help=f"write `{name.text} = {stop.here.text}`",
    )


def _two_words(stop: _Stop) -> Diagnostic | None:
    """`overlap = prefer always`, `[a b]`, `match = bias aten.gelu`."""
    here = stop.here
    if here.kind in ("name", "quantity", "string") and stop.ends_value(-1) and not stop.in_block:
        if not stop.open:
            return None
        return Diagnostic(
            "SG0119",
            "two values stand side by side in a list",
            Label(here.span, "the second one"),
            help=f"write `,` before `{here.text}`",
        )
    if not stop.in_block:
        return None
    second = here if here.kind in ("quantity", "string") else stop.token(-1)
    before = -1 if second is here else -2
    if second.kind not in ("name", "quantity", "string") or not stop.ends_value(before):
        return None
    return _second_word(stop, second, stop.token(before))


def _second_word(stop: _Stop, second: Token, first: Token) -> Diagnostic:
    kind = SPEC_OF.get(stop.kind)
    close = nearest(second.text, kind.names) if kind and second.kind == "name" else None
    if close is not None:
        cure = f"take one of them out, or write `{close} = …`"
    elif stop.here.text in (".", "::"):
        cure = "join them with `->` or `|`"
    else:
        cure = "take one of them out, or put several values in a list, `[a, b]`"
    return Diagnostic(
        "SG0107",
        f"`{second.text}` follows `{first.text}` with nothing between them",
        Label(second.span, "a value is one expression"),
        help=cure,
    )


def _open_end(stop: _Stop) -> Diagnostic | None:
    """`a ->` with nothing behind it."""
    mark = stop.token(-1)
    if mark.text not in ("->", "|", ".", "::", ".."):
        return None
    return Diagnostic(
        "SG0118",
        f"nothing that fits follows `{mark.text}`",
        Label(mark.span),
        help=_WANTED[mark.text],
    )


_WANTED = {
    "->": "write the next step behind it, like `bias -> aten.gelu`",
    "|": "write the other choice behind it, like `aten.gelu | aten.relu`",
    ".": "write a name behind it, like `aten.gelu`",
    "::": "write an op behind it, like `mylib::scan`",
    "..": "write a whole number behind it, like `0..199`",
}


def _brace_as_value(stop: _Stop) -> Diagnostic | None:
    if stop.here.text != "{" or stop.token(-1).text not in ("=", ",", "[", "("):
        return None
    return Diagnostic(
        "SG0115",
        "a brace cannot start a value",
        Label(stop.here.span, "braces only open blocks"),
        help="write a list, `[a, b]`",
    )


def _strange_character(stop: _Stop) -> Diagnostic | None:
    if stop.here.kind != "other" or not stop.here.text:
        return None
    return Diagnostic(
        "SG0116",
        f"`{stop.here.text}` has no meaning in the language",
        Label(stop.here.span),
        help="take it out, or quote the text that holds it",
    )


def _anything(stop: _Stop) -> Diagnostic:
    here = stop.here
    what = f"`{here.text}`" if here.text else "the end of the text"
    before = stop.token(-1).text
    behind = f"follows `{before}`" if before else "stands at the start"
    return Diagnostic(
        "SG0117",
        f"{what} {behind} and does not fit there",
        Label(here.span),
        help="see `sgplan explain SG0117` for the shape of a plan",
    )


_RULES: tuple[Callable[[_Stop], Diagnostic | None], ...] = (
    _strange_character,
    _unquoted_glob,
    _missing_value,
    _block_inside_block,
    _unclosed,
    _nothing_to_close,
    _quantity_in_two,
    _attribute_outside,
    _block_head,
    _bad_separator,
    _missing_equals,
    _two_words,
    _brace_as_value,
    _open_end,
    _anything,
)
