"""Syntax tree to written blocks: names are known, values have their types, labels their form.

This module judges every block by itself, against `blocks.py`; what blocks mean to one another is
the business of `checks/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sgplan.grammar import ast
from sgplan.grammar.blocks import (
    KINDS,
    OVERRIDE_CONDITIONS,
    SPEC_OF,
    AttributeSpec,
    BlockSpec,
    blocks_with,
)
from sgplan.grammar.diagnostics import Diagnostic, Label, Refused, Span
from sgplan.grammar.nearest import joined, nearest
from sgplan.grammar.values import Reading
from sgplan.grammar.written import Key, Setting, WrittenBlock, WrittenOverride

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(slots=True)
class Reader:
    """Reads blocks and gathers what is wrong with them.

    Attributes:
        lets: the values that names stand for.
        problems: found so far.
        broken: attributes that are written but could not be read, by the block's key.
    """

    lets: Mapping[str, ast.Value]
    problems: list[Diagnostic] = field(default_factory=list[Diagnostic])
    broken: set[tuple[Key, str]] = field(default_factory=set[tuple[Key, str]])

    def blocks(self, nodes: Iterable[ast.Block]) -> tuple[WrittenBlock, ...]:
        """The blocks whose kind is known."""
        read = (self._block(node) for node in nodes)
        return tuple(block for block in read if block is not None)

    def override(self, node: ast.Override) -> WrittenOverride:
        """An override with its conditions and blocks; broken when any of it could not be read."""
        before = len(self.problems)
        self._label_form(node.label)
        conditions = self._settings(
            ("override", node.label.value),
            OVERRIDE_CONDITIONS,
            [member for member in node.members if isinstance(member, ast.Attribute)],
        )
        found = {setting.name: setting.value for setting in conditions}
        blocks = self.blocks(member for member in node.members if isinstance(member, ast.Block))
        if len(self.problems) > before:
            self.broken.add((("override", node.label.value), ""))
        return WrittenOverride(
            node.label.value, node.head, found.get("world"), found.get("device"), blocks
        )

    def _block(self, node: ast.Block) -> WrittenBlock | None:
        spec = SPEC_OF.get(node.kind.text)
        if spec is None:
            self._unknown_block(node)
            return None
        self._label_rule(node, spec)
        label = None if node.label is None else node.label.value
        settings = self._settings((spec.kind, label), spec.attributes, node.attributes)
        return WrittenBlock(spec.kind, label, node.head, settings)

    def _unknown_block(self, node: ast.Block) -> None:
        if node.kind.text == "override":
            message, cure = "an `override` holds no `override`", "write it outside"
            problem = Diagnostic("SG0201", message, Label(node.kind.span), help=cure)
        else:
            problem = unknown_block(node.kind.text, node.kind.span)
        self.problems.append(problem)

    def _label_rule(self, node: ast.Block, spec: BlockSpec) -> None:
        if node.label is not None and spec.label == "forbidden":
            self.problems.append(
                Diagnostic(
                    "SG0219",
                    f"`{spec.kind}` has a label, and there is only one such block",
                    Label(node.label.span),
                    help="take the label out",
                )
            )
        elif node.label is None and spec.label == "required":
            self.problems.append(
                Diagnostic(
                    "SG0218",
                    f"`{spec.kind}` has no label",
                    Label(node.kind.span, "its name in errors and listings is missing"),
                    help=f'write `{spec.kind} "name" {{ … }}`',
                )
            )
        elif node.label is not None:
            self._label_form(node.label)

    def _label_form(self, label: ast.Text) -> None:
        if not _LABEL.fullmatch(label.value):
            self.problems.append(
                Diagnostic(
                    "SG0220",
                    f'`"{label.value}"` cannot be a label',
                    Label(label.span),
                    help="write letters, digits, `_` and `-`, with a letter or `_` first",
                )
            )

    def _settings(
        self, key: Key, specs: Sequence[AttributeSpec], nodes: Iterable[ast.Attribute]
    ) -> tuple[Setting, ...]:
        known = {spec.name: spec for spec in specs}
        earlier: dict[str, ast.Attribute] = {}
        settings: list[Setting] = []
        for node in nodes:
            name = node.name.text
            if name not in known:
                self.problems.append(_unknown_attribute(key[0], node.name, known))
            elif name in earlier:
                self.problems.append(_written_twice(node, earlier[name]))
            else:
                earlier[name] = node
                settings += self._setting(key, known[name], node)
        return tuple(settings)

    def _setting(self, key: Key, spec: AttributeSpec, node: ast.Attribute) -> list[Setting]:
        try:
            value = spec.type.read(node.value, Reading(spec.name, self.lets))
        except Refused as refused:
            self.problems += [_used_at(problem, node) for problem in refused.diagnostics]
            self.broken.add((key, spec.name))
            return []
        return [Setting(spec.name, value, node.span, node.value.span)]


def unknown_block(kind: str, place: Span) -> Diagnostic:
    """A word that is no kind of block, where a block begins."""
    close = nearest(kind, (*KINDS, "override"))
    cure = f"write `{close}`" if close else f"the blocks are {joined(KINDS, 'and')}"
    return Diagnostic("SG0201", f"there is no block `{kind}`", Label(place), help=cure)


def _unknown_attribute(kind: str, name: ast.Name, known: Mapping[str, AttributeSpec]) -> Diagnostic:
    close = nearest(name.text, known)
    homes = blocks_with(name.text)
    if close is not None:
        cure = f"write `{close}`"
    elif homes:
        cure = f"write it inside {joined(homes)}"
    elif known:
        cure = f"it has {joined(known, 'and')}"
    else:
        cure = "leave it empty"
    return Diagnostic(
        "SG0200", f"`{kind}` has no attribute `{name.text}`", Label(name.span), help=cure
    )


def _written_twice(node: ast.Attribute, earlier: ast.Attribute) -> Diagnostic:
    return Diagnostic(
        "SG0223",
        f"`{node.name.text}` is written twice in one block",
        Label(node.span, "the second time"),
        (Label(earlier.span, "the first time"),),
        help="take one of them out",
    )


def _used_at(problem: Diagnostic, node: ast.Attribute) -> Diagnostic:
    """The problem, with the attribute shown when the fault stands in a `let` that it uses."""
    assert problem.primary is not None
    span, value = problem.primary.span, node.value.span
    if span.source == value.source and value.start <= span.start < value.end:
        return problem
    used = Label(value, f"used for `{node.name.text}` here")
    return Diagnostic(
        problem.code,
        problem.message,
        problem.primary,
        (*problem.secondary, used),
        problem.notes,
        problem.help,
        problem.severity,
    )
