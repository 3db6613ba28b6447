"""The checked plan in one world: the contract between the grammar and every later folder.

`Plan` has a typed block for every job, defaults filled. `PlanFile` (in `planfile.py`) is what it is
resolved from; its name and those of blocks and values are imported from here by later folders.
This module knows no syntax: ranks import it and never load the parser. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar, cast

from sgplan.grammar.clauses import (
    CLASS_OF,
    Block,
    Capture,
    Checkpoint,
    Control,
    Fuse,
    Guard,
    Host,
    Mesh,
    Model,
    Operator,
    Partition,
    Precision,
    Recompute,
    Recover,
    Schedule,
    Separate,
    Slo,
    Sync,
    Update,
    Verify,
)
from sgplan.grammar.literals import (
    Dynamic,
    Grid,
    GuardPath,
    Interleaved,
    Interval,
    MinGain,
    Pad,
    Pattern,
    RealInterval,
    Selector,
    Stage,
    Steps,
    Triton,
    Weighted,
    field_name,
)
from sgplan.grammar.planfile import MESH, Let, PlanFile
from sgplan.grammar.written import Layer, WrittenBlock, WrittenOverride, value_to_wire

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
    "RealInterval",
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

    def precisions_at(self, model: str | None, step: int) -> list[Precision]:
        """The `precision` blocks that hold for a model in one step, higher priority first.

        Args:
            step: the first is 0.
        """
        found = [
            block
            for block in self.precisions
            if block.model in (None, model) and block.holds_at(step)
        ]
        return sorted(found, key=lambda block: (-(block.priority or 0), block.model is None))

    def storage_of(self, model: str | None) -> tuple[str, bool]:
        """How parameters of a model are stored, and whether they have fp32 masters."""
        block = self.storing(model)
        return ("as_written", False) if block is None else (block.params, block.master != "off")

    def storing(self, model: str | None) -> Precision | None:
        """The block that says how parameters of a model are stored, in every stage alike."""
        return next((block for block in self.precisions_at(model, 0) if block.stores), None)

    def settings(self) -> list[str]:
        """Every value that is written, as `sync.bucket = 4194304`: bytes and seconds as numbers."""
        return sorted(
            f"{block.address}.{name} = {_json(getattr(block, field_name(name)))}"
            for block in self._blocks()
            for name in block.written
        )

    def _blocks(self) -> Iterator[Block]:
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
            yield from (part for part in parts if isinstance(part, Block))


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


def typed(block: WrittenBlock, **fitted: Any) -> Block:
    """The block as its class, defaults filled; `fitted` are values that the world decides."""
    values = {field_name(s.name): s.value for s in block.settings if s.name != "use"}
    return CLASS_OF[block.kind](
        label=block.label,
        span=block.span,
        written={setting.name: setting.span for setting in block.settings},
        **(values | fitted),
    )


def typed_plan(file: PlanFile, layer: Layer, world: int, device: str) -> Plan:
    """The plan of a file whose merged `layer` fits the world."""
    blocks = [typed(block) for key, block in layer.items() if key != MESH]
    blocks.append(_mesh_for(layer, world))
    return Plan(
        source=file.source,
        text=file.text,
        world=world,
        device=device,
        digest=_digest(blocks),
        lets=file.lets,
        **_by_place(blocks),
    )


def _mesh_for(layer: Layer, world: int) -> Block:
    mesh = layer.get(MESH)
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


def _json(value: Any) -> str:
    return json.dumps(value_to_wire(value))


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
