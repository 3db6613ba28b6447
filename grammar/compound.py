"""Value types made of others: lists, choices between types, calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgplan.grammar import ast
from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.literals import field_name
from sgplan.grammar.nearest import joined, nearest
from sgplan.grammar.quantities import Measure, StepCount
from sgplan.grammar.units import take_apart
from sgplan.grammar.values import Reading, ValueType, Word, read_each, refusal, sort, wrong_type


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[…]` of one type, with `least` items or more."""

    item: ValueType
    least: int = 1

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
            if len(found.values) < self.least:
                raise _empty(self.item, found, reading)
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


def _empty(item: ValueType, node: ast.Value, reading: Reading) -> Refused:
    return refusal(
        "SG0204",
        node,
        f"the list of `{reading.attribute}` is empty",
        help=f"write {item.noun} into it, or take `{reading.attribute}` out",
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
        if not values:
            raise _empty(self.item, found, reading)
        return read_each(((self.item, value) for value in values), reading)


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
        number = take_apart(found.text) if isinstance(found, ast.Quantity) else None
        if number is not None and not number.unit and self._units:
            raise self._no_unit(found, number.digits, reading)
        raise wrong_type(self, found, reading)

    @property
    def _units(self) -> list[str]:
        """The units that a number without one may have meant."""
        measures = (type_ for type_ in self.types if isinstance(type_, Measure | StepCount))
        return [measure.usual for measure in measures]

    def _no_unit(self, node: ast.Value, digits: str, reading: Reading) -> Refused:
        return refusal(
            "SG0203",
            node,
            f"`{reading.attribute}` is {self.noun}, and `{digits}` has no unit",
            help=f"write {joined(digits + unit for unit in self._units)}",
        )

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
        return self.make(**{field_name(name): value for name, value in values.items()})

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
