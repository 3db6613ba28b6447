"""Value types of numbers: counts, numbers, sizes, times, rates, percentages, ranges.

This module knows which unit each type wants and shows the right spelling of a wrong one;
`units.py` does the arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

from sgplan.grammar import ast
from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.literals import Interval, RealInterval, Steps
from sgplan.grammar.nearest import joined
from sgplan.grammar.units import BYTES, SECONDS, Number, meant, take_apart
from sgplan.grammar.values import Reading, ValueType, refusal, sort, wrong_type

# What fits a signed machine word, in which plans travel; for sizes that is 8 EiB.
MOST = 2**63 - 1


def _number(type_: ValueType, node: ast.Value, reading: Reading) -> tuple[ast.Quantity, Number]:
    """The number behind the node, refused when it is none."""
    found = reading.follow(node)
    if isinstance(found, ast.Text) and take_apart(found.value) is not None:
        raise refusal(
            "SG0206",
            found,
            f"`{reading.attribute}` takes {type_.noun}, and numbers are not quoted",
            "this is a string",
            f"write `{found.value}`",
        )
    if not isinstance(found, ast.Quantity):
        raise wrong_type(type_, found, reading)
    number = take_apart(found.text)
    if number is None:
        raise refusal(
            "SG0204",
            found,
            f"`{found.text}` is not a number",
            help=f"write {type_.noun}, like `{type_.example}`",
        )
    if abs(number.real) > MOST:
        raise _too_large(type_, found, reading)
    return found, number


def _too_large(type_: ValueType, node: ast.Value, reading: Reading) -> Refused:
    return refusal(
        "SG0210",
        node,
        f"`{reading.attribute}` is larger than any number that can be meant",
        help=f"write {type_.noun}, like `{type_.example}`",
    )


@dataclass(frozen=True, slots=True)
class _Bare(ABC):
    """A number without a unit."""

    noun: str
    example: str

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Quantity)

    def read(self, node: ast.Value, reading: Reading) -> Any:
        found, number = _number(self, node, reading)
        if number.unit:
            raise _no_unit(self, found, number, reading)
        return self.value(found, number, reading)

    @abstractmethod
    def value(self, found: ast.Quantity, number: Number, reading: Reading) -> float:
        """The value of a number without a unit, refused when it is none of this type."""


@dataclass(frozen=True, slots=True)
class Count(_Bare):
    """A whole number without a unit."""

    noun: str = "a count"
    example: str = "4"
    least: int = 0

    def value(self, found: ast.Quantity, number: Number, reading: Reading) -> int:
        if number.whole is None:
            low, high = floor(number.real), ceil(number.real)
            raise refusal(
                "SG0204",
                found,
                f"`{reading.attribute}` is a whole number",
                "this is not written as one" if low == high else "this is not whole",
                f"write {joined(dict.fromkeys((f'{low}', f'{high}')))}",
            )
        if number.whole < self.least:
            raise refusal(
                "SG0210",
                found,
                f"`{reading.attribute}` is {number.whole}, and the least is {self.least}",
                help=f"write `{self.least}` or more",
            )
        return number.whole


@dataclass(frozen=True, slots=True)
class Scalar(_Bare):
    """A number without a unit, whole when it is written so."""

    noun: str = "a number"
    example: str = "32"

    def value(self, found: ast.Quantity, number: Number, reading: Reading) -> float:
        return number.real if number.whole is None else number.whole


@dataclass(frozen=True, slots=True)
class Real(_Bare):
    """A number without a unit, `least` or more."""

    noun: str = "a number"
    example: str = "1e-6"
    least: float = 0.0

    def value(self, found: ast.Quantity, number: Number, reading: Reading) -> float:
        if number.real < self.least:
            raise refusal(
                "SG0210",
                found,
                f"`{reading.attribute}` is {found.text}, and the least is {self.least:g}",
                help=f"write `{self.least:g}` or more",
            )
        return number.real


def _no_unit(type_: ValueType, node: ast.Quantity, number: Number, reading: Reading) -> Refused:
    bare = f"{number.real / 100:g}" if number.unit == "%" else number.digits
    return refusal(
        "SG0203",
        node,
        f"`{reading.attribute}` is {type_.noun} and has no unit",
        f"`{number.unit}` does not belong here",
        f"write `{bare}`",
    )


@dataclass(frozen=True, slots=True)
class Measure:
    """A number with a unit, turned into one base unit.

    Attributes:
        units: factor of every unit to the base.
        usual: the unit that a bare number most likely means.
        exact: whether the value is a whole number of base units.
    """

    noun: str
    example: str
    units: Mapping[str, float]
    usual: str
    exact: bool = False

    def fits(self, node: ast.Value) -> bool:
        number = take_apart(node.text) if isinstance(node, ast.Quantity) else None
        return number is not None and number.unit in self.units

    def read(self, node: ast.Value, reading: Reading) -> Any:
        found, number = _number(self, node, reading)
        if number.unit not in self.units:
            raise self._wrong_unit(found, number, reading)
        factor = self.units[number.unit]
        # Dividing by a whole number keeps `50us` the float nearest to it.
        value = number.real * factor if factor >= 1 else number.real / round(1 / factor)
        if value > MOST:
            raise _too_large(self, found, reading)
        if value <= 0 or (self.exact and value < 1):
            raise refusal(
                "SG0210",
                found,
                f"`{reading.attribute}` is {found.text}, which is nothing",
                help=f"write {self.noun} above zero",
            )
        return round(value) if self.exact else value

    def _wrong_unit(self, node: ast.Quantity, number: Number, reading: Reading) -> Refused:
        digits, unit = number.digits, number.unit
        if not unit:
            return refusal(
                "SG0203",
                node,
                f"`{reading.attribute}` is {self.noun}, and `{digits}` has no unit",
                help=f"write `{digits}{self.usual}`",
            )
        could = [known for known in meant(unit) if known in self.units]
        if could:
            return refusal(
                "SG0202",
                node,
                f"`{unit}` is not a unit",
                "" if len(could) == 1 else f"it could be {joined(could)}",
                f"write {joined(digits + known for known in could)}",
                (_amounts(could),) if len(could) > 1 else (),
            )
        if meant(unit):
            return refusal(
                "SG0203",
                node,
                f"`{reading.attribute}` is {self.noun}",
                f"this is {sort(node)}",
                f"write {self.noun}, like `{self.example}`",
            )
        return refusal(
            "SG0202",
            node,
            f"`{unit}` is not a unit",
            help=f"write {self.noun}, like `{self.example}`",
        )


def _amounts(units: list[str]) -> str:
    """`1MiB` is 1 048 576 bytes, `1MB` 1 000 000."""
    amounts = [f"{BYTES[unit]:,}".replace(",", " ") for unit in units]
    facts = [f"`1{unit}` is {amount} bytes" for unit, amount in zip(units, amounts, strict=True)]
    return ", ".join(facts)


SIZE = Measure("a size", "25MiB", BYTES, "MiB", exact=True)
TIME = Measure("a time", "10s", SECONDS, "s")
LINK_RATE = Measure("a rate", "800MiB/s", {f"{u}/s": f for u, f in BYTES.items()}, "MiB/s")
SAMPLE_RATE = Measure("a rate", "100/s", {"/s": 1.0}, "/s")
PERCENT = Measure("a percentage", "5%", {"%": 0.01}, "%")
MODULES = Measure("a number of modules", "2modules", {"modules": 1}, "modules", exact=True)


@dataclass(frozen=True, slots=True)
class StepCount:
    """`50steps`, kept apart from a time."""

    noun: str = "a number of steps"
    example: str = "50steps"

    usual: str = "steps"

    _measure = Measure("a number of steps", "50steps", {"steps": 1}, "steps", exact=True)

    def fits(self, node: ast.Value) -> bool:
        return self._measure.fits(node)

    def read(self, node: ast.Value, reading: Reading) -> Steps:
        return Steps(self._measure.read(node, reading))


@dataclass(frozen=True, slots=True)
class WholeRange:
    """`low..high`, both ends included, whole numbers."""

    least: int = 0
    noun: str = "a range"
    example: str = "0..199"

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Range)

    def read(self, node: ast.Value, reading: Reading) -> Interval:
        end = Count("a range of whole numbers", self.example, self.least)
        return Interval(*_ends(self, end, node, reading))


@dataclass(frozen=True, slots=True)
class NumberRange:
    """`low..high`, both ends included, whole numbers or not."""

    noun: str = "a range"
    example: str = "128..2048"

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Range)

    def read(self, node: ast.Value, reading: Reading) -> Interval | RealInterval:
        low, high = _ends(self, Scalar("a range of numbers", self.example), node, reading)
        if isinstance(low, float) or isinstance(high, float):
            return RealInterval(low, high)
        return Interval(low, high)


def _ends(type_: ValueType, end: ValueType, node: ast.Value, reading: Reading) -> tuple[Any, Any]:
    """Both ends of a range, None for an open one."""
    if isinstance(node, ast.Quantity):
        raise refusal(
            "SG0204",
            node,
            f"`{reading.attribute}` takes a range",
            f"this is {sort(node)}",
            f"write `{node.text}..{node.text}`, or `{node.text}..` for no end",
        )
    if not isinstance(node, ast.Range):
        raise wrong_type(type_, node, reading)
    low = None if node.low is None else end.read(node.low, reading)
    high = None if node.high is None else end.read(node.high, reading)
    if low is not None and high is not None and low > high:
        raise refusal(
            "SG0214",
            node,
            f"the range of `{reading.attribute}` ends before it starts",
            help=f"write `{high}..{low}`",
        )
    return low, high
