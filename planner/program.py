"""The program: what one rank does, as data with a text form that parses back.

`planner -> ranks` contract: the passes make it, the interpreter executes it, listings, events and
artefacts show it. Standard library only. The text form lives in `program_text.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from sgplan.grammar.diagnostics import Span
from sgplan.planner.facts import EffectFact, Engine, Path

# Roots on these paths have buckets; `stock` and `none` have none.
PLANNED_PATHS = frozenset[Path]({"hooks", "in_graph"})


@dataclass(frozen=True, slots=True)
class Origin:
    """The clause that asked for something: its address (`sync.bucket`) and its place.

    `span` is None when the clause was not written and its default applied.
    """

    clause: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Root:
    """A module whose calls the program runs.

    Attributes:
        name: `model` for a single root.
        engine: how its calls run.
        path: how its gradients are reduced; `stock` and `none` have no buckets.
        gradients: trainable parameters, hence gradients to deliver.
    """

    name: str
    engine: Engine
    path: Path
    gradients: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """A callable piece of the program.

    Attributes:
        name: `fwd0`, `bwd0` (`fwd0.1` for a variant no listed line runs), or the root's name
            for an eager root.
        root: the root it belongs to.
        direction: `eager` when the root's own Python runs.
        region: qualified name of the captured frame, empty for an eager root.
        digest: of the captured graph, empty for an eager root.
        flops: floating-point operations of one call, None when not known.
        bytes: bytes read plus written by its ops, None when not known.
        bytes_saved: activations kept for backward, None when not known.
        saved_without: the same without the plan's `recompute`; None when it has none.
        kernels: how many the compiler made of it (`show --kernels` lists them), None when none did.
        buckets: backward graphs: buckets whose gradients become final inside the graph.
        effects: what it draws and changes, in the order that every pass keeps.
    """

    name: str
    root: str
    direction: Literal["forward", "backward", "eager"]
    region: str = ""
    digest: str = ""
    flops: int | None = None
    bytes: int | None = None
    bytes_saved: int | None = None
    saved_without: int | None = None
    kernels: int | None = None
    buckets: tuple[str, ...] = ()
    effects: tuple[EffectFact, ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One gradient's place in its bucket's flat buffer.

    Attributes:
        parameter: name in the unwrapped model.
        index: place of the parameter in the root's registration order.
        offset: first element, in elements of the bucket's dtype; a multiple of 64 bytes.
        shape, strides: of the gradient, in elements.
    """

    parameter: str
    index: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together, in one flat buffer of one dtype.

    Attributes:
        name: `b0`, `b1`, …: unique in the program, in launch order within a root.
        root: the root whose gradients it holds.
        dtype: short name (`f32`).
        wire: dtype on the wire; equal to `dtype` unless the plan says otherwise.
        numel: elements of the flat buffer, padding included.
        nbytes: bytes of the gradients, padding excluded.
        slots: in layout order.
    """

    name: str
    root: str
    dtype: str
    wire: str
    numel: int
    nbytes: int
    slots: tuple[Slot, ...]
    origin: Origin | None = None


def wire_buffer(bucket: str) -> str:
    """The value that a bucket's `cast` to its wire dtype makes."""
    return f"{bucket}.wire"


@dataclass(frozen=True, slots=True)
class Run:
    """`run GRAPH (ins) -> outs`: entered by the script's own call."""

    name: ClassVar[str] = "run"
    graph: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    eager: bool = False
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Cast:
    """`cast BUCKET f32 -> bf16`: the bucket's buffer to or from its wire dtype."""

    name: ClassVar[str] = "cast"
    bucket: str
    source: str
    target: str
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class ReduceStart:
    """`reduce.start BUCKET axis=data`: begin the sum over an axis of the mesh.

    Attributes:
        bucket, axis: what is summed, over which axis.
        after: in a graph, the op behind which it stands (`aten.mm of blocks.4.qkv`); empty for
            hooks, which fire when autograd has accumulated the last gradient.
        when: `ready` as soon as its gradients are final and the earlier buckets have started;
            `end` behind the whole backward (`overlap = off`), and then `after` is empty.
    """

    name: ClassVar[str] = "reduce.start"
    bucket: str
    axis: str
    after: str = ""
    when: Literal["ready", "end"] = "ready"
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """`wait BUCKETS`: block until their reductions are done, in this order."""

    name: ClassVar[str] = "wait"
    buckets: tuple[str, ...]
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Deliver:
    """`deliver ROOT grads (N)`: from here on every `.grad` holds the reduced gradient."""

    name: ClassVar[str] = "deliver"
    root: str
    gradients: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """`free VALUES`: nothing may use them after this line."""

    name: ClassVar[str] = "free"
    values: tuple[str, ...]
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """`update NAME optimizer=KIND`: entered by the script's own `optimizer.step()`."""

    name: ClassVar[str] = "update"
    optimizer: str
    kind: Literal["as_written", "fused", "compiled"]
    origin: Origin | None = None


Instruction = Run | Cast | ReduceStart | Wait | Deliver | Free | Update
INSTRUCTIONS: tuple[type, ...] = (Run, Cast, ReduceStart, Wait, Deliver, Free, Update)

PhaseName = Literal["forward", "backward", "update"]
PHASES: tuple[PhaseName, ...] = ("forward", "backward", "update")


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of instructions that one call of the script enters."""

    name: PhaseName
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does.

    Attributes:
        rank, world: of the data-parallel process group.
        mesh: axis name and size, in order.
        source: name of the plan file.
        plan: digest of the plan's text after overrides (hex).
        contract: digest of all that ranks must agree on (hex); empty without planned roots.
        roots, graphs, buckets, phases: the body.
    """

    rank: int
    world: int
    mesh: tuple[tuple[str, int], ...]
    source: str
    plan: str
    contract: str
    roots: tuple[Root, ...] = ()
    graphs: tuple[Graph, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    phases: tuple[Phase, ...] = ()

    def phase(self, name: PhaseName) -> tuple[Instruction, ...]:
        for phase in self.phases:
            if phase.name == name:
                return phase.instructions
        return ()

    def instructions(self) -> Iterator[Instruction]:
        for phase in self.phases:
            yield from phase.instructions
