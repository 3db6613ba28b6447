"""The checked plan before it meets a world, as it travels to the ranks and into saved plans.

This module knows how the layers of a file are merged and what does not fit a world; the typed
blocks that come of it are in `plan.py`. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sgplan.grammar.diagnostics import Diagnostic, Label, Refused, Span
from sgplan.grammar.written import (
    Layer,
    WrittenBlock,
    WrittenOverride,
    lay_over,
    override_conflicts,
)

if TYPE_CHECKING:
    from sgplan.grammar.plan import Plan

WIRE_VERSION = 1
SETS_SOURCE = "--set"
MESH = ("mesh", None)


@dataclass(frozen=True, slots=True)
class Let:
    """A name for a value; `text` is the value as written."""

    name: str
    text: str
    span: Span

    def to_wire(self) -> list[Any]:
        return [self.name, self.text, self.span.to_wire()]

    @staticmethod
    def from_wire(data: Sequence[Any]) -> Let:
        return Let(data[0], data[1], Span(*data[2]))


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A checked plan before it meets a world.

    Attributes:
        source, text: the file's name and text; spans point into it.
        blocks: of the file.
        overrides: of the file, with their conditions.
        sets: the blocks of `--set`.
        sets_text: the text their spans point into, one `--set` a line.
        lets: of the file.
    """

    source: str
    text: str
    blocks: tuple[WrittenBlock, ...] = ()
    overrides: tuple[WrittenOverride, ...] = ()
    sets: tuple[WrittenBlock, ...] = ()
    sets_text: str = ""
    lets: tuple[Let, ...] = ()

    def sources(self) -> dict[str, str]:
        """Name and text of everything a span may point into."""
        return {self.source: self.text, SETS_SOURCE: self.sets_text}

    def merged(self, active: Iterable[WrittenOverride]) -> Layer:
        """The file under these overrides and `--set`, without blocks that are switched off."""
        layer = lay_over({}, self.blocks)
        for override in active:
            layer = lay_over(layer, override.blocks)
        layer = lay_over(layer, self.sets)
        return {key: block for key, block in layer.items() if block.value("use", "on") == "on"}

    def resolve(self, world: int, device: str) -> Plan:
        """The plan for `world` ranks on `device` (`cpu`, `cuda`).

        Raises:
            Refused: two active overrides set one attribute, or the mesh does not fit the world.
        """
        active = [override for override in self.overrides if override.holds(world, device)]
        layer = self.merged(active)
        problems = [*override_conflicts(active), *misfits(layer, world)]
        if problems:
            raise Refused(problems)
        # Loaded here: `sgplan check` resolves nothing and needs no class of a block.
        from sgplan.grammar.plan import typed_plan

        return typed_plan(self, layer, world, device)

    def to_wire(self) -> dict[str, Any]:
        """Plain data that msgpack and JSON can carry."""
        return {
            "version": WIRE_VERSION,
            "source": self.source,
            "text": self.text,
            "blocks": [block.to_wire() for block in self.blocks],
            "overrides": [override.to_wire() for override in self.overrides],
            "sets": [block.to_wire() for block in self.sets],
            "sets_text": self.sets_text,
            "lets": [let.to_wire() for let in self.lets],
        }

    @staticmethod
    def from_wire(data: dict[str, Any]) -> PlanFile:
        """The inverse of `to_wire`.

        Raises:
            ValueError: the data is of another version.
        """
        if data.get("version") != WIRE_VERSION:
            found = data.get("version")
            raise ValueError(f"plan data of version {found}, this reader knows {WIRE_VERSION}")
        return PlanFile(
            source=data["source"],
            text=data["text"],
            blocks=tuple(map(WrittenBlock.from_wire, data["blocks"])),
            overrides=tuple(map(WrittenOverride.from_wire, data["overrides"])),
            sets=tuple(map(WrittenBlock.from_wire, data["sets"])),
            sets_text=data["sets_text"],
            lets=tuple(map(Let.from_wire, data["lets"])),
        )


def misfits(layer: Layer, world: int) -> list[Diagnostic]:
    """What is wrong with the mesh for that many ranks: at most one diagnostic."""
    mesh = layer.get(MESH)
    if mesh is None:
        return []
    data, pipe = mesh.value("data", "rest"), mesh.value("pipe", 1)
    if data == "rest" and world % pipe:
        fact = f"`pipe = {pipe}` does not divide a world of {_ranks(world)}"
        cure = f"start a multiple of {pipe} ranks, or change `pipe`"
    elif data != "rest" and data * pipe != world:
        size = f"{data}" if pipe == 1 else f"{data} × {pipe} = {data * pipe}"
        fact = f"the mesh has {size} ranks, but the world has {_ranks(world)}"
        cure = f"start {_ranks(data * pipe)}"
        cure += ", or write `data = rest`" if world % pipe == 0 else ", or change the axes"
    else:
        return []
    axes = [setting for name in ("data", "pipe") if (setting := mesh.get(name)) is not None]
    places = [Label(axis.span) for axis in axes]
    return [Diagnostic("SG0301", fact, places[-1], tuple(places[:-1]), help=cure)]


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"
