"""Value types that point into the model: module globs, ops, families, patterns, guard paths.

This module knows their spelling; whether they match anything only the captured graph can tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sgplan.grammar import ast
from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.literals import GuardPath, Pattern, Selector
from sgplan.grammar.nearest import nearest
from sgplan.grammar.quantities import Count
from sgplan.grammar.values import Reading, read_each, refusal, sort, wrong_type

FAMILIES = (
    "matmul",
    "conv",
    "bias",
    "norm",
    "softmax",
    "pointwise",
    "reduction",
    "attention",
    "embedding",
    "loss",
    "dropout",
    "random",
)

# Namespaces whose ops are written with a dot; all others are written `library::op`.
_DOTTED_LIBRARIES = ("aten", "prims", "quantized", "torchvision")

_LOOKS_LIKE_OP = re.compile(rf"({'|'.join(_DOTTED_LIBRARIES)})\..+|\w+::\w+.*")
# A module's name may hold a hyphen (`ModuleDict({"en-de": …})`); `**` is a component of its own.
_PART = re.compile(r"\*\*|(?:[\w-]|\*(?!\*)|\{[^{}]*\})+")
_WRAPPERS = ("module", "_orig_mod")


@dataclass(frozen=True, slots=True)
class Glob:
    """A quoted pattern over module names."""

    noun: str = "a quoted module glob"
    example: str = '"layers.*"'

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Text)

    def read(self, node: ast.Value, reading: Reading) -> str:
        found = reading.follow(node)
        if isinstance(found, ast.Text):
            return check_glob(found)
        if isinstance(found, ast.Ref) and found.dotted is not None:
            raise self._unquoted(found, found.dotted, reading)
        raise wrong_type(self, found, reading)

    def _unquoted(self, node: ast.Ref, text: str, reading: Reading) -> Refused:
        close = nearest(text, reading.lets)
        if close is not None:
            return wrong_type(self, node, reading)
        if _LOOKS_LIKE_OP.fullmatch(text) or text in FAMILIES:
            return refusal(
                "SG0209",
                node,
                f"`{reading.attribute}` takes module globs, and `{text}` is an op or a family",
                help=f"write a quoted module glob, like `{self.example}`",
            )
        return refusal(
            "SG0109", node, f"the module glob `{text}` is not quoted", help=f'write `"{text}"`'
        )


def check_glob(node: ast.Text) -> str:
    """The glob, refused when it cannot match a module name."""
    text = node.value
    if _LOOKS_LIKE_OP.fullmatch(text):
        raise refusal(
            "SG0208", node, f"the op `{text}` is quoted", help=f"write `{text}` without quotes"
        )
    # A dot inside braces separates nothing: `{0..11}` is one component.
    parts = re.split(r"\.(?![^{]*\})", text)
    if parts[0] in _WRAPPERS:
        raise refusal(
            "SG0215",
            node,
            f"`{parts[0]}.` is not part of a module's name",
            help=f'write `"{".".join(parts[1:]) or "**"}"`',
            notes=("names are those of the model before any wrapper",),
        )
    for part in parts:
        if not _PART.fullmatch(part) or not _braces_hold(part):
            raise refusal(
                "SG0215",
                node,
                f'`"{text}"` is not a module glob',
                f"at `{part}`" if part else "a part between dots is empty",
                "write names and dots, with `*`, `**`, `{0..11}` or `{a,b}`",
            )
    return text


def _braces_hold(part: str) -> bool:
    """Whether every `{…}` is a range `0..11` that holds something, or a list `a,b`."""
    return all(map(_is_choice, re.findall(r"\{([^{}]*)\}", part)))


def _is_choice(inside: str) -> bool:
    if ends := re.fullmatch(r"([0-9]{1,6})\.\.([0-9]{1,6})", inside):
        return int(ends[1]) <= int(ends[2])
    return re.fullmatch(r"[\w-]+(,[\w-]+)*", inside) is not None


@dataclass(frozen=True, slots=True)
class Op:
    """One op: `aten.gelu`, `mylib::scan`."""

    noun: str = "an op"
    example: str = "mylib::scan"

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Ref) and node.word is None and node.dotted is not None

    def read(self, node: ast.Value, reading: Reading) -> str:
        found = reading.follow(node)
        if isinstance(found, ast.Text) and _LOOKS_LIKE_OP.fullmatch(found.value):
            check_glob(found)
        if not isinstance(found, ast.Ref) or found.word is not None or found.dotted is None:
            raise wrong_type(self, found, reading)
        return op_name(found, found.dotted)


def op_name(node: ast.Ref, text: str) -> str:
    """The op's name, refused when its library can only be written with `::`."""
    library = node.name.text
    first = node.trailers[0]
    assert isinstance(first, ast.Member)
    if len(node.trailers) > 2:
        raise refusal(
            "SG0209",
            node,
            f"`{text}` has too many parts for an op",
            help=f"write a library, an op and at most an overload, like `aten.add.Tensor`, "
            f'or `"{text}"` for a module',
        )
    if first.separator == "." and library not in _DOTTED_LIBRARIES:
        raise refusal(
            "SG0209",
            node,
            f"`{text}` is not an op",
            f"no library `{library}` is written with a dot",
            f'write `{library}::{first.name.text}` for an op, `"{text}"` for a module',
        )
    return text


@dataclass(frozen=True, slots=True)
class OneSelector:
    """A family, an op, a quoted glob, or ops under a glob."""

    noun: str = "a selector"
    example: str = "norm"

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Ref | ast.Text | ast.Scoped)

    def read(self, node: ast.Value, reading: Reading) -> Selector:
        found = reading.follow(node)
        if isinstance(found, ast.Text):
            return Selector(check_glob(found), None)
        if isinstance(found, ast.Scoped):
            return Selector(check_glob(found.glob), _op_or_family(found.ref, reading))
        if isinstance(found, ast.Ref) and found.dotted is not None:
            return Selector(None, _op_or_family(found, reading))
        raise refusal(
            "SG0204",
            found,
            f"`{reading.attribute}` takes families, ops and quoted module globs",
            f"this is {sort(found)}",
            'write a selector, like `norm`, `aten.gelu` or `"layers.*"`',
        )


def _op_or_family(node: ast.Ref, reading: Reading) -> str:
    if node.word is None:
        return op_name(node, node.dotted or "")
    if node.word in FAMILIES:
        return node.word
    close = nearest(node.word, (*FAMILIES, *reading.lets))
    raise refusal(
        "SG0207",
        node,
        f"`{node.word}` is neither a family nor a `let`",
        help=f"write `{close}`"
        if close
        else "write a family, an op like `aten.gelu`, or a quoted module glob",
    )


@dataclass(frozen=True, slots=True)
class PatternType:
    """Steps with `->`, choices with `|`."""

    noun: str = "a pattern"
    example: str = "bias -> aten.gelu"

    _selector = OneSelector()

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Chain | ast.Either) or self._selector.fits(node)

    def read(self, node: ast.Value, reading: Reading) -> Pattern:
        return Pattern(tuple(self._steps(node, reading)))

    def _steps(self, node: ast.Value, reading: Reading) -> list[tuple[Selector, ...]]:
        found = reading.follow(node)
        if isinstance(found, ast.Chain):
            return [step for part in found.steps for step in self._steps(part, reading)]
        return [self._choices(found, reading)]

    def _choices(self, node: ast.Value, reading: Reading) -> tuple[Selector, ...]:
        found = reading.follow(node)
        if isinstance(found, ast.Either):
            return tuple(s for part in found.choices for s in self._choices(part, reading))
        if isinstance(found, ast.Chain):
            raise refusal(
                "SG0204",
                node,
                "a chain cannot be one of several choices",
                "this name stands for a chain with `->`",
                "write the choices inside the chain, like `a -> b | c`",
            )
        return read_each([(self._selector, found)], reading)


@dataclass(frozen=True, slots=True)
class GuardPathType:
    """`input[0].shape[1]`, `input["ids"].dtype`, `input["scale"]`, `module["layers.0"].counter`."""

    noun: str = "a path into the inputs or the modules"
    example: str = "input[0].shape[1]"

    def fits(self, node: ast.Value) -> bool:
        return isinstance(node, ast.Ref)

    def read(self, node: ast.Value, reading: Reading) -> GuardPath:
        if isinstance(node, ast.Ref) and node.name.text == "input":
            match node.trailers:
                case (ast.Index(key=key), ast.Member(name=ast.Name(text="dtype" | "device" as it))):
                    return GuardPath(self._input(key, reading), it)
                case (
                    ast.Index(key=key),
                    ast.Member(name=ast.Name(text="shape")),
                    ast.Index(key=ast.Quantity() as dim),
                ):
                    return GuardPath(
                        self._input(key, reading), "shape", Count(least=-8).read(dim, reading)
                    )
                case (ast.Index(key=ast.Quantity() | ast.Text() as key),):
                    return GuardPath(self._input(key, reading), "value")
                case _:
                    pass
        if isinstance(node, ast.Ref) and node.name.text == "module":
            match node.trailers:
                case (ast.Member(name=name),):
                    return GuardPath("", "attribute", attribute=name.text)
                case (ast.Index(key=ast.Text() as path), ast.Member(name=name)):
                    return GuardPath(path.value, "attribute", attribute=name.text)
                case _:
                    pass
        raise refusal(
            "SG0216",
            node,
            f"`{reading.attribute}` takes {self.noun}",
            help='write `input[0].shape[1]`, `input["name"].shape[1]`, `input[*].dtype`, '
            '`input["name"]` or `module["layers.0"].name`',
        )

    def _input(self, key: ast.Quantity | ast.Text | None, reading: Reading) -> int | str:
        if key is None:
            return "*"
        return key.value if isinstance(key, ast.Text) else Count().read(key, reading)
