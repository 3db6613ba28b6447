"""The checked plan: the contract between the grammar and every later folder.

`PlanFile` is checked but unresolved and travels to the ranks as plain data; `resolve` lays
overrides and `--set` over the file for one world, fits the mesh, fills the defaults and gives the
typed `Plan`.
This module knows no syntax: ranks import it and never load the parser. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

from sgplan.grammar.clauses import (
    CLASS_OF,
    Block,
    Capture,
    Checkpoint,
    Control,
    Dynamic,
    Fuse,
    Grid,
    Guard,
    GuardPath,
    Host,
    Interleaved,
    Interval,
    Mesh,
    MinGain,
    Model,
    Operator,
    Pad,
    Partition,
    Pattern,
    Precision,
    Recompute,
    Recover,
    Schedule,
    Selector,
    Separate,
    Slo,
    Stage,
    Steps,
    Sync,
    Triton,
    Update,
    Verify,
    Weighted,
    field_name,
)
from sgplan.grammar.diagnostics import Diagnostic, Label, Refused, Span
from sgplan.grammar.written import (
    Layer,
    WrittenBlock,
    WrittenOverride,
    lay_over,
    override_conflicts,
    value_to_wire,
)

__all__ = [
    "Block",
    "Capture",
    "Checkpoint",
    "Control",
    "Dynamic",
    "Fuse",
    "Grid",
    "Guard",
    "GuardPath",
    "Host",
    "Interleaved",
    "Interval",
    "Let",
    "Mesh",
    "MinGain",
    "Model",
    "Operator",
    "Pad",
    "Partition",
    "Pattern",
    "Plan",
    "PlanFile",
    "Precision",
    "Recompute",
    "Recover",
    "Schedule",
    "Selector",
    "Separate",
    "Slo",
    "Stage",
    "Steps",
    "Sync",
    "Triton",
    "Update",
    "Verify",
    "Weighted",
    "WrittenBlock",
    "WrittenOverride",
]

WIRE_VERSION = 1
SETS_SOURCE = "--set"


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


class _ForModel(Protocol):
    @property
    def model(self) -> str | None: ...


_ModelBlock = TypeVar("_ModelBlock", bound=_ForModel)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan resolved for one world: typed, defaults filled.

    A block kind that occurs once is always here; its `present` says whether the plan has it.

    Attributes:
        source, text: the file's name and text.
        world, device: what it was resolved for.
        digest: hex digest of the resolved content, not of comments, spacing or order.
        lets: the names the file defines; every use is already replaced.
    """

    source: str
    text: str
    world: int
    device: str
    digest: str
    lets: tuple[Let, ...] = ()
    models: tuple[Model, ...] = ()
    mesh: Mesh = field(default_factory=Mesh)
    captures: tuple[Capture, ...] = ()
    fuses: tuple[Fuse, ...] = ()
    separates: tuple[Separate, ...] = ()
    operators: tuple[Operator, ...] = ()
    partition: Partition = field(default_factory=Partition)
    schedule: Schedule = field(default_factory=Schedule)
    syncs: tuple[Sync, ...] = ()
    updates: tuple[Update, ...] = ()
    guards: tuple[Guard, ...] = ()
    precisions: tuple[Precision, ...] = ()
    recomputes: tuple[Recompute, ...] = ()
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    recover: Recover = field(default_factory=Recover)
    host: Host = field(default_factory=Host)
    control: Control = field(default_factory=Control)
    verify: Verify = field(default_factory=Verify)
    slo: Slo = field(default_factory=Slo)

    def capture_of(self, model: str | None) -> Capture:
        """The `capture` block that names the model, else the one without `model`, else defaults."""
        return _of_model(self.captures, model, Capture())

    def sync_of(self, model: str | None) -> Sync:
        """The `sync` block that names the model, else the one without `model`, else defaults."""
        return _of_model(self.syncs, model, Sync())

    def update_of(self, model: str | None) -> Update:
        """The `update` block that names the model, else the one without `model`, else defaults."""
        return _of_model(self.updates, model, Update())


def _of_model(
    blocks: Iterable[_ModelBlock], model: str | None, default: _ModelBlock
) -> _ModelBlock:
    found = {block.model: block for block in blocks}
    return found.get(model) or found.get(None) or default


# Where a plan keeps the blocks of a kind: a tuple for kinds that may repeat, else one block.
REPEATED = {
    "model": "models",
    "capture": "captures",
    "fuse": "fuses",
    "separate": "separates",
    "operator": "operators",
    "sync": "syncs",
    "update": "updates",
    "guard": "guards",
    "precision": "precisions",
    "recompute": "recomputes",
}


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
        blocks = [typed(block) for key, block in layer.items() if key != _MESH]
        blocks.append(_mesh_for(layer, world))
        return Plan(
            source=self.source,
            text=self.text,
            world=world,
            device=device,
            digest=_digest(blocks),
            lets=self.lets,
            **_by_place(blocks),
        )

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


def typed(block: WrittenBlock, **fitted: Any) -> Block:
    """The block as its class, defaults filled; `fitted` are values that the world decides."""
    values = {field_name(s.name): s.value for s in block.settings if s.name != "use"}
    return CLASS_OF[block.kind](
        label=block.label,
        span=block.span,
        written={setting.name: setting.span for setting in block.settings},
        **(values | fitted),
    )


def misfits(layer: Layer, world: int) -> list[Diagnostic]:
    """What is wrong with the mesh for that many ranks: at most one diagnostic."""
    mesh = layer.get(_MESH)
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


_MESH = ("mesh", None)


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


def _mesh_for(layer: Layer, world: int) -> Block:
    mesh = layer.get(_MESH)
    if mesh is None:
        return Mesh(data=world)
    data = mesh.value("data", "rest")
    return typed(mesh, data=world // mesh.value("pipe", 1) if data == "rest" else data)


def _by_place(blocks: Iterable[Block]) -> dict[str, Any]:
    """Blocks under the names of the plan's fields."""
    places: dict[str, Any] = {}
    for block in blocks:
        if (many := REPEATED.get(block.kind)) is None:
            places[block.kind] = block
        else:
            places[many] = (*places.get(many, ()), block)
    return places


_PLACES = ("span", "written")


def _digest(blocks: Iterable[Block]) -> str:
    """Of every value, and of which were written: a written value wins over the script's own."""
    content = [
        {
            "address": block.address,
            "written": sorted(block.written),
            "values": {
                f.name: value_to_wire(getattr(block, f.name))
                for f in fields(block)
                if f.name not in _PLACES
            },
        }
        for block in blocks
    ]
    content.sort(key=lambda block: str(block["address"]))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
