"""`let`: names that are free, values that make sense, no circles. Needs no block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sgplan.grammar import ast
from sgplan.grammar.blocks import KINDS, RESERVED
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.nearest import nearest
from sgplan.grammar.selectors import FAMILIES
from sgplan.grammar.values import sort


def check_lets(lets: tuple[ast.Let, ...]) -> Iterator[Diagnostic]:
    """Everything that is wrong with the file's `let` lines themselves."""
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
        yield from _check_value(let.value, let, first.keys() | {other.name.text for other in lets})


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


def check_circles(lets: tuple[ast.Let, ...]) -> Iterator[Diagnostic]:
    """Names that stand for themselves; while there are any, no value can be read."""
    by_name = {let.name.text: let for let in lets}
    reported: set[str] = set()
    for name, let in by_name.items():
        circle = () if name in reported else _circle(name, name, by_name, ())
        if circle:
            reported |= set(circle)
            yield Diagnostic(
                "SG0229",
                f"`{name}` stands for itself",
                Label(let.name.span, " → ".join([*circle, name])),
                help="give one of them a value of its own",
            )


def _circle(
    name: str, goal: str, lets: Mapping[str, ast.Let], path: tuple[str, ...]
) -> tuple[str, ...]:
    """The names from `name` back to `goal`, empty when it is not reached."""
    path = (*path, name)
    for word in _words(lets[name].value):
        if word == goal:
            return path
        if word in lets and word not in path and (found := _circle(word, goal, lets, path)):
            return found
    return ()


def _words(value: ast.Value) -> list[str]:
    if isinstance(value, ast.Items | ast.Either | ast.Chain):
        return [word for part in _parts(value) for word in _words(part)]
    word = value.word if isinstance(value, ast.Ref) else None
    return [] if word is None else [word]
