"""Names what is wrong where the parser stopped, from the tokens around that place.

One table of rules, tried in order; each looks at one kind of mistake and returns its diagnostic or
nothing. This module knows the grammar only as far as naming faults needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sgplan.grammar import misspelt
from sgplan.grammar.blocks import ATTRIBUTE_NAMES, KINDS, SPEC_OF, blocks_with
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.nearest import joined, nearest
from sgplan.grammar.reading import unknown_block
from sgplan.grammar.scan import Places, Token, through
from sgplan.grammar.stop import CLOSER, Stop

ITEM_WORDS = (*KINDS, "let", "override")


def diagnose(tokens: Sequence[Token], at: int, places: Places) -> Diagnostic:
    """The diagnostic for a text whose token `at` does not fit."""
    stop = Stop(tokens, at, places)
    return next(found for rule in _RULES if (found := rule(stop)) is not None)


def _block_inside_block(stop: Stop) -> Diagnostic | None:
    """`sync { … update {`: the first brace is still open."""
    label = stop.here.kind == "string"
    if not (stop.in_block and (stop.here.text == "{" or (label and stop.token(1).text == "{"))):
        return _item_inside_block(stop)
    inner = stop.token(-1)
    if inner.kind != "name" or stop.token(-2).text == "=":
        return None
    return _still_open(stop, inner)


def _item_inside_block(stop: Stop) -> Diagnostic | None:
    """`let` or `override` where attributes stand; the parser stops at the word or behind it."""
    words = ("let", "override")
    if not stop.in_block:
        return None
    if stop.here.text in words and stop.ends_value(-1):
        return _still_open(stop, stop.here)
    inner = stop.token(-1)
    follows = inner.text in words and stop.here.kind in ("name", "string")
    return _still_open(stop, inner) if follows and stop.token(-2).text != "=" else None


def _still_open(stop: Stop, inner: Token) -> Diagnostic:
    brace = stop.open[-1]
    return Diagnostic(
        "SG0104",
        f"`{inner.text}` begins inside a block that is not closed",
        Label(stop.head(brace), "this block is still open"),
        (Label(inner.span, "begins here"),),
        help="close the first block with `}` before it",
    )


def _unclosed(stop: Stop) -> Diagnostic | None:
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


def _missing_value(stop: Stop) -> Diagnostic | None:
    """`bucket =` with nothing behind it; the next attribute was read as its value."""
    behind = stop.here.text in ("=", "{") or stop.here.kind in ("name", "string")
    item = stop.token(-1).text in ITEM_WORDS or stop.here.text == "="
    if behind and item and stop.token(-2).text == "=" and stop.token(-1).kind == "name":
        name, equals = stop.token(-3), stop.token(-2)
    elif stop.here.text == "=" and stop.token(-2).text == "let" and stop.token(-3).text == "=":
        name, equals = stop.token(-4), stop.token(-3)
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
        help=_value_for(stop.kind, name.text)
        if stop.in_block
        else f"write `let {name.text} = …`, or take the line out",
    )


def _value_for(kind: str, name: str) -> str:
    """The cure for an attribute without a value."""
    spec = SPEC_OF[kind].attribute(name) if kind in SPEC_OF else None
    if spec is None:
        return f"write `{name} = …`, or take it out"
    if spec.required:
        return f"write `{name} = {spec.type.example}`"
    return f"write a value, or leave `{name}` out for its default"


def _attribute_outside(stop: Stop) -> Diagnostic | None:
    """`bucket = 25MiB` outside any block, and `sync = { … }`."""
    name = stop.token(-1)
    if stop.here.text != "=" or name.kind != "name" or name.text == "let" or stop.open:
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


def _nothing_to_close(stop: Stop) -> Diagnostic | None:
    if stop.here.text not in ("}", "]", ")") or stop.open:
        return None
    return Diagnostic(
        "SG0112",
        f"`{stop.here.text}` closes nothing",
        Label(stop.here.span, "no bracket is open here"),
        help="take it out",
    )


def _block_head(stop: Stop) -> Diagnostic | None:
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
    labelled = here.kind == "name" and stop.token(1).text == "{" and same_line
    if labelled and name.text in ITEM_WORDS:
        return Diagnostic(
            "SG0113",
            f"the label `{here.text}` is not quoted",
            Label(here.span),
            help=f'write `{name.text} "{here.text}"`',
        )
    if name.kind == "name" and stop.token(-2).text == "let" and stop.token(-3).text != "=":
        return Diagnostic(
            "SG0110",
            f"`let {name.text}` has no `=`",
            Label(name.span),
            help=f"write `let {name.text} = …`",
        )
    kind = name if name.kind == "name" else stop.token(-2)
    head = [kind.text] if kind is name else [kind.text, name.text]
    if kind.kind == "name" and kind.text not in ITEM_WORDS:
        return unknown_block(kind.text, kind.span)
    if kind.text not in SPEC_OF and kind.text != "override":
        return None
    return Diagnostic(
        "SG0113",
        f"block `{kind.text}` has no body",
        Label(through(kind.span, name.span), "`{` is missing behind this"),
        help=f"write `{' '.join(head)} {{ }}`, with its attributes between the braces",
    )


def _bad_separator(stop: Stop) -> Diagnostic | None:
    here, before = stop.here, stop.token(-1)
    if here.text == ":" and before.kind == "name" and stop.in_block:
        value = stop.token(2 if stop.token(1).text == "=" else 1)
        return Diagnostic(
            "SG0110",
            f"`{before.text}` is followed by `:`",
            Label(here.span, "an attribute has `=`"),
            help=f"write `{before.text} = {value.text}`",
        )
    if here.text == "=" == before.text and stop.token(-2).kind == "name":
        return Diagnostic(
            "SG0114",
            "a value stands behind one `=`",
            Label(here.span, "the second one"),
            help=f"write `{stop.token(-2).text} = {stop.token(1).text}`",
        )
    if here.text in (";", ",") and (
        stop.ends_value(-1) or before.text in ("", "{", "[", "(", ",", "}")
    ):
        return Diagnostic(
            "SG0114",
            f"this `{here.text}` separates nothing",
            Label(here.span),
            help="take it out" if here.text == "," else "take it out: a space is enough",
        )
    return None


def _missing_equals(stop: Stop) -> Diagnostic | None:
    """`overlap prefer`."""
    name = stop.token(-1)
    if not stop.in_block or name.kind != "name" or stop.here.text == "=":
        return None
    names = SPEC_OF[stop.kind].names if stop.kind in SPEC_OF else ATTRIBUTE_NAMES
    fresh = stop.token(-2).text in ("{", ",") or name.text in names
    if not fresh or stop.token(-2).text == "=" or stop.here.text in _JOINTS:
        return None
    if not stop.begins_value(0) or stop.token(1).text == "=":
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


# What joins the parts of one value.
_JOINTS = (".", "::", "->", "|")


def _several_values(stop: Stop) -> Diagnostic | None:
    """`in = "a", "b"`, `match = bias, aten.gelu`: a list without its brackets."""
    comma = -1 if stop.here.kind in ("quantity", "string") else -2
    second = stop.token(comma + 1)
    joint = second is stop.here or stop.here.text in _JOINTS
    known = second.kind in ("name", "quantity", "string") and stop.ends_value(comma - 1)
    if not (stop.in_block and joint and known and stop.token(comma).text == ","):
        return None
    return Diagnostic(
        "SG0107",
        f"`{second.text}` follows `{stop.token(comma - 1).text}` without a name",
        Label(second.span, "behind the comma the next attribute begins"),
        help="put several values in a list, `[a, b]`",
    )


def _two_words(stop: Stop) -> Diagnostic | None:
    """`overlap = prefer always`, `[a b]`, `match = bias aten.gelu`."""
    here = stop.here
    if here.kind in ("name", "quantity", "string") and stop.ends_value(-1) and not stop.in_block:
        if not stop.open:
            return None
        bracket = stop.tokens[stop.open[-1]]
        if bracket.text == "[" and here.kind == "name" and stop.token(1).text == "=":
            return Diagnostic(
                "SG0104",
                "`[` is never closed",
                Label(bracket.span, "opened here"),
                (Label(here.span, "`]` is missing before this"),),
                help="close it with `]`",
            )
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


def _second_word(stop: Stop, second: Token, first: Token) -> Diagnostic:
    kind = SPEC_OF.get(stop.kind)
    close = nearest(second.text, kind.names) if kind and second.kind == "name" else None
    if close is not None:
        cure = f"take one of them out, or write `{close} = …`"
    elif stop.here.text in (".", "::"):
        cure = "join them with `->` or `|`"
    elif first.kind == "quantity" and second.text.startswith("-"):
        cure = f"write `{first.text}..{second.text[1:]}` for a range"
    else:
        cure = "take one of them out, or put several values in a list, `[a, b]`"
    return Diagnostic(
        "SG0107",
        f"`{second.text}` follows `{first.text}` with nothing between them",
        Label(second.span, "a value is one expression"),
        help=cure,
    )


def _open_end(stop: Stop) -> Diagnostic | None:
    """`a ->` with nothing behind it."""
    mark = stop.token(-1)
    if stop.here.text in ("->", "|", "::") and mark.text in ("=", "[", "(", ","):
        return Diagnostic(
            "SG0118",
            f"nothing stands before `{stop.here.text}`",
            Label(stop.here.span),
            help=f"take it out, or {_WANTED[stop.here.text].replace('behind', 'before')}",
        )
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


def _bracket_as_value(stop: Stop) -> Diagnostic | None:
    here, before = stop.here, stop.token(-1).text
    if here.text == "(" and before in ("=", ",", "[", "(", "->", "|"):
        return Diagnostic(
            "SG0115",
            "a parenthesis cannot start a value",
            Label(here.span, "parentheses hold the arguments of a call"),
            help="take them out: `|` binds tighter than `->`",
        )
    if here.text != "{" or before not in ("=", ",", "[", "("):
        return None
    return Diagnostic(
        "SG0115",
        "a brace cannot start a value",
        Label(here.span, "braces only open blocks"),
        help="write a list, `[a, b]`",
    )


def _let_without_name(stop: Stop) -> Diagnostic | None:
    if stop.token(-1).text != "let" or stop.here.kind == "name" or stop.open:
        return None
    return Diagnostic(
        "SG0110",
        "this `let` has no name",
        Label(stop.token(-1).span, "a name starts with a letter or `_`"),
        help="write `let name = …`",
    )


def _anything(stop: Stop) -> Diagnostic:
    here = stop.here
    what = f"`{here.text}`" if here.text else "the end of the text"
    before = stop.token(-1).text
    fact = f"follows `{before}` and does not fit there" if before else "begins no block"
    return Diagnostic(
        "SG0117",
        f"{what} {fact}",
        Label(here.span),
        help="see `sgplan explain SG0117` for the shape of a plan",
    )


_RULES: tuple[Callable[[Stop], Diagnostic | None], ...] = (
    *misspelt.VALUE_RULES,
    _missing_value,
    _block_inside_block,
    _unclosed,
    _nothing_to_close,
    misspelt.quantity_in_two,
    _let_without_name,
    _attribute_outside,
    _block_head,
    _bad_separator,
    _several_values,
    _missing_equals,
    _two_words,
    _bracket_as_value,
    _open_end,
    _anything,
)
