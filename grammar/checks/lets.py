"""`let`: names that are free, values that make sense, no circles. Needs no block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sgplan.grammar import ast
from sgplan.grammar.blocks import KINDS, RESERVED
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.nearest import nearest
from sgplan.grammar.selectors import FAMILIES
from sgplan.grammar.values import sort

MOST_USES = 200


def check_lets(lets: tuple[ast.Let, ...]) -> Iterator[Diagnostic]:
    """Everything that is wrong with the file's `let` lines themselves."""
    names = {let.name.text for let in lets}
    first: dict[str, ast.Let] = {}
    for let in lets:
        name = let.name.text
        earlier = first.setdefault(name, let)
        if earlier is not let:
            yield Diagnostic(
                "SG0228",
                f"`{name}` is named twice",
                Label(let.name.span, "the second time"),
                (Label(earlier.name.span, "the first time"),),
                help="give one of them another name",
            )
        elif name in RESERVED:
            yield Diagnostic(
                "SG0225",
                f"`let` cannot take the name `{name}`",
                Label(let.name.span, f"this is {_taken_by(name)}"),
                help=f"give it another name, like `my_{name}`",
            )
        yield from _check_value(let.value, let, names)


def _taken_by(name: str) -> str:
    if name in FAMILIES:
        return "a family of ops"
    return "a block" if name in KINDS else "a word of the language"


def _check_value(value: ast.Value, let: ast.Let, names: set[str]) -> Iterator[Diagnostic]:
    if isinstance(value, ast.Items | ast.Either | ast.Chain):
        for part in _parts(value):
            yield from _check_value(part, let, names)
        return
    if isinstance(value, ast.Ref) and value.word is not None:
        yield from _check_word(value, names)
        return
    plain = isinstance(value, ast.Text | ast.Quantity | ast.Scoped)
    if plain or (isinstance(value, ast.Ref) and value.dotted is not None):
        return
    yield Diagnostic(
        "SG0217",
        f"`{let.name.text}` cannot stand for {sort(value)}",
        Label(value.span, "a `let` holds a selector, a number or a string"),
        help="write it at the attribute itself",
    )


def _parts(value: ast.Items | ast.Either | ast.Chain) -> tuple[ast.Value, ...]:
    if isinstance(value, ast.Items):
        return value.values
    return value.choices if isinstance(value, ast.Either) else value.steps


def _check_word(value: ast.Ref, names: set[str]) -> Iterator[Diagnostic]:
    word = value.name.text
    if word in names or word in FAMILIES:
        return
    if word in RESERVED:
        yield Diagnostic(
            "SG0217",
            f"a `let` cannot stand for the word `{word}`",
            Label(value.span, "a `let` holds a selector, a number or a string"),
            help="write it at the attribute itself",
        )
        return
    close = nearest(word, (*FAMILIES, *names))
    yield Diagnostic(
        "SG0207",
        f"`{word}` is neither a family nor a `let`",
        Label(value.span),
        help=f"write `{close}`" if close else "quote it if it is a string or a module",
    )


def check_uses(lets: tuple[ast.Let, ...]) -> Iterator[Diagnostic]:
    """Names that stand for themselves or for too much: while there are any, no value is read."""
    by_name = {let.name.text: let for let in lets}
    uses = {name: [w for w in _words(let.value) if w in by_name] for name, let in by_name.items()}
    circles, order = _walk(uses)
    for circle in circles:
        yield Diagnostic(
            "SG0229",
            f"`{circle[0]}` stands for itself",
            Label(by_name[circle[0]].name.span, " → ".join([*circle, circle[0]])),
            help="give one of them a value of its own",
        )
    if not circles:
        yield from _too_much(by_name, uses, order)


def _too_much(
    by_name: Mapping[str, ast.Let], uses: Mapping[str, list[str]], order: list[str]
) -> Iterator[Diagnostic]:
    size: dict[str, int] = {}
    for name in order:
        size[name] = sum(1 + size[word] for word in uses[name])
        if size[name] > MOST_USES:
            yield Diagnostic(
                "SG0232",
                f"`{name}` stands for more than {MOST_USES} uses of other names",
                Label(by_name[name].value.span),
                help="use fewer names, or fewer names inside one another",
            )
            return


def _walk(uses: Mapping[str, list[str]]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The circles, and every name behind all that it uses; by hand, for chains may be long."""
    circles: list[tuple[str, ...]] = []
    done: dict[str, None] = {}
    for start in uses:
        path = {start: iter(uses[start])} if start not in done else {}
        while path:
            name = next(reversed(path))
            word = next(path[name], None)
            if word is None:
                del path[name]
                done[name] = None
            elif word in path:
                names = list(path)
                circles.append(tuple(names[names.index(word) :]))
            elif word not in done:
                path[word] = iter(uses[word])
    return circles, list(done)


def _words(value: ast.Value) -> list[str]:
    if isinstance(value, ast.Items | ast.Either | ast.Chain):
        return [word for part in _parts(value) for word in _words(part)]
    word = value.word if isinstance(value, ast.Ref) else None
    return [] if word is None else [word]
