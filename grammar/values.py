"""Types of attribute values: what each accepts, and how a node becomes a value of the plan.

This module knows words, strings, lists, calls and choices between types; `quantities.py` knows
numbers and `selectors.py` globs, ops and patterns. It knows no attribute: `blocks.py` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sgplan.grammar import ast
from sgplan.grammar.diagnostics import Diagnostic, Label, Refused
from sgplan.grammar.nearest import joined, nearest
from sgplan.grammar.units import BYTES, SECONDS, take_apart


@dataclass(frozen=True, slots=True)
class Reading:
    """Where a value is read.

    Attributes:
        attribute: the name that messages use.
        lets: the values that names stand for.
    """

    attribute: str
    lets: Mapping[str, ast.Value]

    def follow(self, node: ast.Value) -> ast.Value:
        """The value behind a `let` name, else the node itself."""
        seen: set[str] = set()
        while isinstance(node, ast.Ref) and (word := node.word) in self.lets and word not in seen:
            assert word is not None
            seen.add(word)
            node = self.lets[word]
        return node


class ValueType(Protocol):
    """One type of value."""

    @property
    def noun(self) -> str:
        """What it is, with an article: `a size`."""
        ...

    @property
    def example(self) -> str:
        """One right spelling."""
        ...

    def fits(self, node: ast.Value) -> bool:
        """Whether the node has this type's shape, so that its mistakes are best told by it."""
        ...

    def read(self, node: ast.Value, reading: Reading) -> Any:
        """The value.

        Raises:
            Refused: the node is not of this type.
        """
        ...


def refusal(
    code: str,
    node: ast.Value | ast.Name | ast.Argument | ast.Member | ast.Index,
    message: str,
    label: str = "",
    help: str | None = None,
    notes: tuple[str, ...] = (),
) -> Refused:
    """What stops the reading: one diagnostic that points at the node."""
    primary = Label(node.span, label)
    return Refused([Diagnostic(code, message, primary, notes=notes, help=help)])


def wrong_type(type_: ValueType, node: ast.Value, reading: Reading) -> Refused:
    """The node is of another kind than the attribute takes, or a name that stands for nothing."""
    word = node.word if isinstance(node, ast.Ref) else None
    cure = f"write {type_.noun}, like `{type_.example}`"
    if word is not None:
        close = nearest(word, reading.lets)
        return refusal(
            "SG0207",
            node,
            f"`{word}` names nothing where `{reading.attribute}` takes {type_.noun}",
            "no `let` has this name",
            f"write `{close}`" if close else cure,
        )
    return refusal(
        "SG0204", node, f"`{reading.attribute}` takes {type_.noun}", f"this is {sort(node)}", cure
    )


def sort(node: ast.Value) -> str:
    """What a node is, in a user's words."""
    if isinstance(node, ast.Quantity):
        number = take_apart(node.text)
        unit = "" if number is None else number.unit
        return "a size" if unit in BYTES else "a time" if unit in SECONDS else "a number"
    if isinstance(node, ast.Ref):
        if any(isinstance(trailer, ast.Arguments) for trailer in node.trailers):
            return "a call"
        return "a word" if node.word else "a name with parts"
    return _SORTS[type(node)]


_SORTS: dict[type, str] = {
    ast.Text: "a string",
    ast.Range: "a range",
    ast.Scoped: "a selector",
    ast.Items: "a list",
    ast.Either: "a choice with `|`",
    ast.Chain: "a chain with `->`",
}


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few bare words."""

    words: tuple[str, ...]

    @property
    def noun(self) -> str:
        return joined(self.words)

    @property
    def example(self) -> str:
        return self.words[0]

    def fits(self, node: ast.Value) -> bool:
        return (isinstance(node, ast.Ref) and node.word in self.words) or (
            isinstance(node, ast.Quantity) and node.text in self.words
        )

    def read(self, node: ast.Value, reading: Reading) -> str:
        if isinstance(node, ast.Ref) and node.word is not None:
            if node.word not in self.words:
                raise self._unknown(node, reading)
            return node.word
        if isinstance(node, ast.Quantity) and node.text in self.words:
            return node.text
        if isinstance(node, ast.Text):
            raise self._quoted(node, reading)
        raise refusal(
            "SG0204",
            node,
            f"`{reading.attribute}` takes a word",
            f"this is {sort(node)}",
            f"write {self.noun}",
        )

    def _unknown(self, node: ast.Ref, reading: Reading) -> Refused:
        word = node.name.text
        close = nearest(word, self.words)
        notes = ("the language has words, no booleans",) if word in ("true", "false") else ()
        return refusal(
            "SG0205",
            node,
            f"`{word}` is not a word of `{reading.attribute}`",
            "" if close is None else f"`{close}` is close",
            f"write {self.noun}",
            notes,
        )

    def _quoted(self, node: ast.Text, reading: Reading) -> Refused:
        close = node.value if node.value in self.words else nearest(node.value, self.words)
        return refusal(
            "SG0206",
            node,
            f"`{reading.attribute}` takes a word, and words are not quoted",
            "this is a string",
            f"write `{close}`" if close else f"write {self.noun}",
        )


def words(*choices: str) -> Word:
    """One of these words."""
    return Word(choices)


@dataclass(frozen=True, slots=True)
class String:
    """A quoted string, perhaps of a certain form."""

    noun: str = "a string"
    example: str = '"text"'
    form: str = r".+"

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Text)

    def read(self, node: ast.Value, reading: Reading) -> str:
        found = reading.follow(node)
        if not isinstance(found, ast.Text):
            raise self._not_quoted(found, reading)
        if not re.fullmatch(self.form, found.value):
            raise refusal(
                "SG0211",
                found,
                f'`{reading.attribute}` takes {self.noun}, which `"{found.value}"` is not',
                help=f"write {self.noun}, like `{self.example}`",
            )
        return found.value

    def _not_quoted(self, node: ast.Value, reading: Reading) -> Refused:
        if isinstance(node, ast.Ref) and node.dotted and not nearest(node.dotted, reading.lets):
            return refusal(
                "SG0206",
                node,
                f"`{reading.attribute}` takes {self.noun}, and strings are quoted",
                "no `let` has this name" if node.word else "",
                f'write `"{node.dotted}"`',
            )
        return wrong_type(self, node, reading)


FILE = String("a path", '"runs/ckpt"')
QUALIFIED = String("a module and a name in it", '"train:GPT"', r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
FILE_AND_NAME = String(
    "a file and a name in it", '"kernels/norm.py:layer_norm"', r"[^:]+\.py:[A-Za-z_]\w*"
)
MODEL_LABEL = String("the label of a `model` block", '"G"', r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[…]` of one type."""

    item: ValueType

    @property
    def noun(self) -> str:
        return f"a list, each item {self.item.noun}"

    @property
    def example(self) -> str:
        return f"[{self.item.example}]"

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Items)

    def read(self, node: ast.Value, reading: Reading) -> tuple[Any, ...]:
        found = reading.follow(node)
        if isinstance(found, ast.Items):
            return read_each(((self.item, value) for value in found.values), reading)
        if not self.item.fits(found):
            raise wrong_type(self, found, reading)
        self.item.read(found, reading)
        raise refusal(
            "SG0204",
            found,
            f"`{reading.attribute}` takes a list",
            f"this is {sort(found)}",
            "write it in brackets, `[…]`",
        )


@dataclass(frozen=True, slots=True)
class OneOrMore:
    """One value, or a list of them; read as a tuple."""

    item: ValueType

    @property
    def noun(self) -> str:
        return f"{self.item.noun} or a list of them"

    @property
    def example(self) -> str:
        return self.item.example

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Items) or self.item.fits(node)

    def read(self, node: ast.Value, reading: Reading) -> tuple[Any, ...]:
        found = reading.follow(node)
        values = found.values if isinstance(found, ast.Items) else (node,)
        return read_each(((self.item, value) for value in values), reading)


def read_each(nodes: Iterable[tuple[ValueType, ast.Value]], reading: Reading) -> tuple[Any, ...]:
    """Every value.

    Raises:
        Refused: with the problems of all of them.
    """
    values: list[Any] = []
    problems: list[Diagnostic] = []
    for type_, node in nodes:
        try:
            values.append(type_.read(node, reading))
        except Refused as refused:
            problems.extend(refused.diagnostics)
    if problems:
        raise Refused(problems)
    return tuple(values)


@dataclass(frozen=True, slots=True)
class OneOf:
    """A choice of types; the shape of the node decides which one tells the mistake."""

    types: tuple[ValueType, ...]

    @property
    def noun(self) -> str:
        return " or ".join(type_.noun for type_ in self.types)

    @property
    def example(self) -> str:
        return self.types[0].example

    def fits(self, node: ast.Value) -> bool:
        return any(type_.fits(node) for type_ in self.types)

    def read(self, node: ast.Value, reading: Reading) -> Any:
        for type_ in self.types:
            if type_.fits(node):
                return type_.read(node, reading)
        found = reading.follow(node)
        for type_ in self.types:
            if type_.fits(found):
                return type_.read(found, reading)
        if isinstance(found, ast.Ref) and found.word is not None:
            raise self._unknown_word(found, reading)
        raise wrong_type(self, found, reading)

    def _unknown_word(self, node: ast.Ref, reading: Reading) -> Refused:
        known = [word for type_ in self.types if isinstance(type_, Word) for word in type_.words]
        calls = [type_.name for type_ in self.types if isinstance(type_, Call)]
        if not known:
            return wrong_type(self, node, reading)
        close = nearest(node.name.text, [*known, *calls, *reading.lets])
        return refusal(
            "SG0205",
            node,
            f"`{node.name.text}` is not a word of `{reading.attribute}`",
            "" if close is None else f"`{close}` is close",
            f"write {self.noun}",
        )


def either(*types: ValueType) -> OneOf:
    """One of these types."""
    return OneOf(types)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a call."""

    name: str
    type: ValueType
    required: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """`name(a, b = c)`, read into a class of the plan.

    Attributes:
        positional: parameters without a name, in order.
        named: parameters with one.
        rest: type of any further values without a name, which the last field takes as a tuple.
    """

    name: str
    make: Callable[..., Any]
    positional: tuple[Parameter, ...] = ()
    named: tuple[Parameter, ...] = ()
    rest: ValueType | None = None

    @property
    def noun(self) -> str:
        return f"`{self.name}(…)`"

    @property
    def example(self) -> str:
        first = [parameter.type.example for parameter in self.positional]
        more = [] if self.rest is None else [self.rest.example]
        named = [f"{p.name} = {p.type.example}" for p in self.named if p.required]
        return f"{self.name}({', '.join(first + more + named)})"

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Ref) and node.name.text == self.name

    def read(self, node: ast.Value, reading: Reading) -> Any:
        if not (
            isinstance(node, ast.Ref)
            and len(node.trailers) == 1
            and isinstance(arguments := node.trailers[0], ast.Arguments)
        ):
            raise refusal(
                "SG0212",
                node,
                f"`{self.name}` is written without its arguments",
                help=f"write `{self.example}`",
            )
        return self._read_arguments(node, arguments.items, reading)

    def _read_arguments(
        self, node: ast.Ref, items: tuple[ast.Argument, ...], reading: Reading
    ) -> Any:
        unnamed = [item.value for item in items if item.name is None]
        first = unnamed[: len(self.positional)]
        more = unnamed[len(self.positional) :]
        values = self._read_named(items, reading)
        for parameter, value in zip(self.positional, first, strict=False):
            values[parameter.name] = parameter.type.read(value, reading)
        needed = [p.name for p in self.positional] + [p.name for p in self.named if p.required]
        missing = [name for name in needed if name not in values]
        if missing or (self.rest is not None and not more):
            raise refusal(
                "SG0212",
                node,
                f"`{self.name}` lacks {joined(missing, 'and') or self.rest_noun}",
                help=f"write `{self.example}`",
            )
        if self.rest is not None:
            rest = self.rest
            return self.make(*values.values(), read_each(((rest, v) for v in more), reading))
        if more:
            raise refusal("SG0213", more[0], f"`{self.name}` takes {self._size}", "one too many")
        return self.make(**{_field(name): value for name, value in values.items()})

    @property
    def rest_noun(self) -> str:
        """What the values beyond the positional ones are."""
        return "" if self.rest is None else self.rest.noun

    @property
    def _size(self) -> str:
        count = len(self.positional)
        return f"{count or 'no'} value{'' if count == 1 else 's'} without a name"

    def _read_named(self, items: tuple[ast.Argument, ...], reading: Reading) -> dict[str, Any]:
        known = {parameter.name: parameter.type for parameter in self.named}
        values: dict[str, Any] = {}
        for item in items:
            if item.name is None:
                continue
            name = item.name.text
            if name not in known:
                close = nearest(name, known)
                raise refusal(
                    "SG0213",
                    item.name,
                    f"`{self.name}` has no argument `{name}`",
                    help=f"write `{close}`" if close else f"it takes {joined(known, 'and')}",
                )
            if name in values:
                raise refusal("SG0213", item.name, f"`{self.name}` has `{name}` twice")
            values[name] = known[name].read(item.value, reading)
        return values


def _field(name: str) -> str:
    return "with_" if name == "with" else name
