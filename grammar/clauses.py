"""The typed blocks of a plan: one frozen class per block kind, defaults filled.

This module knows the meaning of every attribute as a Python value (sizes are bytes, times are
seconds, percentages are fractions, words are strings) and nothing of text, checks or merging.
An attribute whose name is a Python keyword carries a trailing underscore (`in_`, `with_`).
Later folders import these names from `sgplan.grammar.plan`. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sgplan.grammar.diagnostics import Span
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
)

KIB, MIB = 1024, 1024**2

OnMiss = Literal["error", "warn"]
_EVER = Interval(0, None)
_EVERY = Steps(500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What every block has.

    Attributes:
        label: the quoted name, None where the kind has none or none was written.
        span: the block's kind and label in the plan; None when the block is not in the plan.
        written: the attributes that were written and where (`name = value`).
    """

    kind: ClassVar[str]
    label: str | None = None
    span: Span | None = None
    written: Mapping[str, Span] = field(default_factory=dict[str, Span], hash=False)

    @property
    def address(self) -> str:
        """How errors, listings and `--set` name the block: `fuse.bias_gelu`, `sync`."""
        return self.kind if self.label is None else f"{self.kind}.{self.label}"

    @property
    def present(self) -> bool:
        """Whether the plan has the block, as opposed to its defaults."""
        return self.span is not None

    def origin(self, attribute: str) -> Span | None:
        """Where the attribute was written, None for a default."""
        return self.written.get(attribute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Block):
    """Names one of several models of the script."""

    kind: ClassVar[str] = "model"
    is_: str
    nth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh(Block):
    """The axes of ranks; `data` is a number here, `rest` having been worked out."""

    kind: ClassVar[str] = "mesh"
    data: int = 1
    pipe: int = 1
    hosts: int | Literal["auto"] = "auto"
    link: float | Literal["measured"] = "measured"

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Name and size of every axis, in order."""
        return (("data", self.data), ("pipe", self.pipe))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Block):
    """What becomes a graph and which engine runs it."""

    kind: ClassVar[str] = "capture"
    model: str | None = None
    graph: Literal["whole", "prefer"] = "prefer"
    dynamic: Literal["auto", "on", "off"] = "auto"
    engine: Literal["auto", "inductor", "eager", "as_written"] = "auto"
    eval: Literal["as_written", "compiled"] = "as_written"
    agree: Literal["contract", "strict"] = "contract"
    autotune: Literal["off", "on", "max"] = "off"
    cuda_graphs: Literal["off", "prefer", "required"] = "off"
    region: str | None = None
    recompiles: int = 8
    rounding: Literal["default", "as_eager"] = "default"
    random: Literal["default", "exact"] = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse(Block):
    """Ops that become one kernel."""

    kind: ClassVar[str] = "fuse"
    model: str | None = None
    priority: int | None = None
    match: Pattern
    in_: tuple[str, ...] = ()
    except_: tuple[str, ...] = ()
    with_: Literal["inductor"] | Triton = "inductor"
    where: tuple[str | MinGain, ...] = ("same_layout",)
    expect: int | None = None
    on_miss: OnMiss = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Separate(Block):
    """Ops that must not share a kernel."""

    kind: ClassVar[str] = "separate"
    model: str | None = None
    priority: int | None = None
    match: Pattern
    in_: tuple[str, ...] = ()
    except_: tuple[str, ...] = ()
    expect: int | None = None
    on_miss: OnMiss = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(Block):
    """A custom operator and how far it is trusted."""

    kind: ClassVar[str] = "operator"
    op: str
    from_: str | None = None
    fake: Literal["required", "prefer"] = "required"
    check: Literal["opcheck", "off"] = "opcheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Block):
    """Where the model is cut into stages."""

    kind: ClassVar[str] = "partition"
    by: Literal["metis", "balanced", "manual"] = "metis"
    cuts: tuple[str, ...] = ()
    balance: float = 0.05
    cost: Literal["measured", "flops", "memory"] = "measured"
    keep_whole: tuple[str, ...] = ()
    pin: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Block):
    """The order of microbatches through the stages."""

    kind: ClassVar[str] = "schedule"
    # `kind` is the block's; the attribute of that name is kept under `order`.
    order: Literal["gpipe", "1f1b", "zero_bubble"] | Interleaved | Grid = "1f1b"
    microbatches: int | None = None
    loss: Literal["auto", "mean", "sum"] | Weighted = "auto"
    on_fallback: Literal["error", "gpipe"] = "gpipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Block):
    """How gradients are reduced across axis `data`; sizes in bytes, `timeout` in seconds."""

    kind: ClassVar[str] = "sync"
    model: str | None = None
    bucket: int = 25 * MIB
    first_bucket: int = 1 * MIB
    overlap: Literal["required", "prefer", "off"] = "prefer"
    wire: Literal["as_written", "bf16", "fp16"] = "as_written"
    transport: Literal["auto", "process_group", "shared_memory"] = "auto"
    by: Literal["auto", "in_graph", "hooks", "stock"] = "auto"
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(Block):
    """How optimizers step."""

    kind: ClassVar[str] = "update"
    model: str | None = None
    optimizer: Literal["as_written", "fused", "compiled"] = "as_written"
    when: Literal["step", "in_backward"] = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard(Block):
    """What may vary between calls, and what happens beyond it."""

    kind: ClassVar[str] = "guard"
    model: str | None = None
    priority: int | None = None
    on: GuardPath
    allow: tuple[float | str, ...] | Interval | RealInterval | None = None
    otherwise: Literal["recompile", "eager", "error"] | Pad = "recompile"
    budget: int = 4
    spent: Literal["error", "eager"] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision(Block):
    """Number formats over a range of steps."""

    kind: ClassVar[str] = "precision"
    model: str | None = None
    priority: int | None = None
    steps: Interval = _EVER
    match: Pattern | None = None
    in_: tuple[str, ...] = ()
    except_: tuple[str, ...] = ()
    compute: Literal["as_written", "fp32", "bf16", "fp16"] = "as_written"
    keep_fp32: tuple[Selector, ...] = ()
    params: Literal["as_written", "bf16", "fp16"] = "as_written"
    master: Literal["fp32", "off"] | None = None
    loss_scale: Literal["auto", "off"] | float | Dynamic = "auto"

    def holds_at(self, step: int) -> bool:
        """Whether a step, counted from 0, is one of its own."""
        return step in self.steps

    @property
    def stores(self) -> bool:
        """Whether it says how parameters are stored."""
        return self.params != "as_written" or self.master == "fp32"

    @property
    def changes_graph(self) -> bool:
        """Whether it puts casts or a loss scale into graphs."""
        return self.compute != "as_written" or self.scale is not None

    @property
    def scale(self) -> float | Dynamic | None:
        """The loss scale that it asks for; None without one."""
        if not isinstance(self.loss_scale, str):
            return self.loss_scale
        return Dynamic() if self.loss_scale == "auto" and self.computes_fp16 else None

    @property
    def computes_fp16(self) -> bool:
        """Whether gradients may overflow for it."""
        return self.compute == "fp16" or (self.compute == "as_written" and self.params == "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute(Block):
    """Activations that are computed again instead of saved."""

    kind: ClassVar[str] = "recompute"
    model: str | None = None
    priority: int | None = None
    in_: tuple[str, ...] = ()
    match: Pattern | None = None
    memory: float | None = None
    every: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Block):
    """When and where the state is saved; `every` is steps or seconds."""

    kind: ClassVar[str] = "checkpoint"
    every: Steps | float = _EVERY
    keep: int = 3
    to: str | None = None
    mode: Literal["async", "sync"] = "async"
    on_signal: Literal["save", "off"] = "save"
    on_error: Literal["continue", "stop"] = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover(Block):
    """What happens when a rank dies; times in seconds."""

    kind: ClassVar[str] = "recover"
    restarts: int = 3
    heartbeat: float = 1.0
    timeout: float = 60.0
    resume: Literal["replay", "rerun", "script", "off"] = "replay"
    spare: Literal["warm", "off"] = "off"
    parent_lost: Literal["end", "finish"] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Block):
    """Cores, memory and chunk size of one host."""

    kind: ClassVar[str] = "host"
    cores: tuple[int | Interval, ...] | Literal["auto"] = "auto"
    numa: Literal["auto", "off"] = "auto"
    threads: int | Literal["auto"] = "auto"
    malloc: Literal["tuned", "as_written"] = "as_written"
    memory_format: Literal["auto", "as_written"] = "as_written"
    chunk: int | Literal["adaptive"] = "adaptive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control(Block):
    """The control plane's address and its largest message in bytes."""

    kind: ClassVar[str] = "control"
    listen: str = "loopback"
    message_max: int = 128 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify(Block):
    """How close to the plain run the planned one must be; None: from the declared precision."""

    kind: ClassVar[str] = "verify"
    forward: float | None = None
    gradient: float | None = None
    steps: int = 3
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo(Block):
    """Service levels: seconds, and samples per second."""

    kind: ClassVar[str] = "slo"
    step_p99: float | None = None
    recovery: float | None = None
    throughput: float | None = None
    enforce: Literal["on", "off"] = "off"


CLASSES: tuple[type[Block], ...] = (
    Model,
    Mesh,
    Capture,
    Fuse,
    Separate,
    Operator,
    Partition,
    Schedule,
    Sync,
    Update,
    Guard,
    Precision,
    Recompute,
    Checkpoint,
    Recover,
    Host,
    Control,
    Verify,
    Slo,
)
CLASS_OF: dict[str, type[Block]] = {cls.kind: cls for cls in CLASSES}
