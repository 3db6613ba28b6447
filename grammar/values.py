"""Types of attribute values: what each accepts, and how a node becomes a value of the plan.

This module knows what a type is, and words and strings; `compound.py` knows lists, calls and
choices between types, `quantities.py` numbers, `selectors.py` globs, ops and patterns. None of them
knows an attribute: `blocks.py` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
        if unit.endswith("/s"):
            return "a rate"
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
        booleans = ("true", "false", "yes", "no")
        notes = ("the language has words, no booleans",) if word.lower() in booleans else ()
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
                f'write `"{node.dotted}"`'
                if re.fullmatch(self.form, node.dotted)
                else f"write {self.noun}, like `{self.example}`",
            )
        return wrong_type(self, node, reading)


FILE = String("a path", '"runs/ckpt"')
QUALIFIED = String("a module and a name in it", '"train:GPT"', r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
FILE_AND_NAME = String(
    "a file and a name in it", '"kernels/norm.py:layer_norm"', r"[^:]+\.py:[A-Za-z_]\w*"
)
KERNEL = String(
    "a file and a name in it", '"kernels/norm.py:layer_norm"', r"(sgplan|[^:]+\.py):[A-Za-z_]\w*"
)
MODEL_LABEL = String("the label of a `model` block", '"G"', r"[A-Za-z_][A-Za-z0-9_-]*")


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
