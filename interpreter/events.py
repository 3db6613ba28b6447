"""The closed list of event kinds: the `ranks -> screen` contract. Standard library only.

An event file is a msgpack stream: one header map (`HEADER_KEYS`), then one array per event,
`[kind, time_ns, *fields]`, fields in the order of the class. `time_ns` is wall-clock nanoseconds.
A reader refuses another `VERSION`, and an unknown kind names the version it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

VERSION = 3
HEADER_KEYS = ("sgplan_events", "rank", "world", "pid", "host", "mode")


@dataclass(frozen=True, slots=True)
class RankAttached:
    """A rank is under the plan. `mode` is `apply`, `plan` or `verify`."""

    rank: int
    world: int
    pid: int
    python: str
    torch: str
    mode: str


@dataclass(frozen=True, slots=True)
class RootFound:
    """A root: `kind` is `ddp`, `compiled` or `module`."""

    root: str
    cls: str
    kind: str
    parameters: int
    numel: int


@dataclass(frozen=True, slots=True)
class EngineChosen:
    root: str
    engine: str
    why: str


@dataclass(frozen=True, slots=True)
class PathChosen:
    """How gradients of a root are reduced: `hooks`, `in_graph`, `stock` or `none`."""

    root: str
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class FallbackTaken:
    """Something ran another way than planned; the summary counts equal ones."""

    root: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class SettingOverridden:
    """The plan won over an argument of the script."""

    name: str
    script: str
    plan: str


@dataclass(frozen=True, slots=True)
class CompileStarted:
    region: str


@dataclass(frozen=True, slots=True)
class CompileFinished:
    """A region was compiled.

    Attributes:
        cache: `hit` when it had every graph, `miss` when it had none, else `part`; or `off`.
        lowered: graphs that it did not have.
        why: the recompile reason, else empty.
    """

    region: str
    seconds: float
    cache: str
    lowered: int
    why: str


@dataclass(frozen=True, slots=True)
class GraphCaptured:
    root: str
    direction: str
    digest: str
    region: str
    ops: int


@dataclass(frozen=True, slots=True)
class CaptureMissed:
    """A region runs as plain Python: a graph break, a skipped frame, the recompile limit."""

    where: str
    why: str


@dataclass(frozen=True, slots=True)
class GuardMissed:
    """A value was met that no compiled variant holds for.

    Attributes:
        guard: address of the guard of the plan that saw it; empty when Dynamo found it by itself.
        path: what was watched, as a guard's `on` has it where a path exists.
        old, new: the values before and now, as a plan writes them.
        where: line of the script, `train.py:57`; empty when not known.
        did: `recompiled`, `ran eagerly`, `stopped`, or `padded to N`.
        seconds: spent compiling for it.
        why: the guard's declaration, or Dynamo's own words.
        line: the line of a plan that declares the value; empty where no guard could.
    """

    guard: str
    path: str
    old: str
    new: str
    where: str
    did: str
    seconds: float
    why: str
    line: str


@dataclass(frozen=True, slots=True)
class ContractAgreed:
    """The ranks that reduce a root agree on it; `ranks` names them, empty where they are all."""

    root: str
    digest: str
    seconds: float
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class DiagnosticRaised:
    """A refusal or warning found in a rank, in the machine form of `grammar.diagnostics`."""

    diagnostic: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NoteAdded:
    """Something a person should know; `subject` groups equal notes of several ranks."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    """One training step.

    Attributes:
        step: from 1.
        seconds: since the step before (or since the first forward).
        wait: seconds blocked in `wait`.
        own: seconds in sgplan's own Python, copies and collectives excluded.
        samples: dim 0 of the leading root's first tensor argument, summed over its calls.
        loss: the leading root's scalar loss, None when not 0-dim.
        skipped: the optimizer or its GradScaler skipped the update.
        in_graph: buckets whose gradients compiled graphs handed over, all of them, and whose
            reduction began.
        by_hooks: the other reductions that began.
    """

    step: int
    seconds: float
    wait: float
    own: float
    samples: int
    loss: float | None
    skipped: bool
    in_graph: int
    by_hooks: int


@dataclass(frozen=True, slots=True)
class ProgramWritten:
    """The rank's part of the artefact lies in the run folder under `file`."""

    file: str


@dataclass(frozen=True, slots=True)
class ScriptEnded:
    """The script left: `how` is `returned` (`sys.exit(0)` too), `exited` with another status,
    `raised`, `planned`, `verified` or `refused`; `detail` has the status or the reason."""

    how: str
    detail: str
    steps: int
    peak_rss: int

    @property
    def failed(self) -> bool:
        """Whether its process ended with another status than 0, as far as that is known."""
        exited = self.how == "exited" and self.detail.startswith("status ")
        return exited or self.how in ("raised", "refused")

    @property
    def words(self) -> str:
        """`exited with status 3`."""
        return f"exited with {self.detail}" if self.how == "exited" else self.how


@dataclass(frozen=True, slots=True)
class EventsDropped:
    """The recorder's queue was full; `count` events since the last such line are lost."""

    count: int


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """Bytes of one process: resident now, the most so far, and on its accelerator (0 without)."""

    resident: int
    peak: int
    device: int


@dataclass(frozen=True, slots=True)
class CompilePhases:
    """Seconds of one compile by torch's own names of its phases; the outer ones hold the inner."""

    region: str
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class ClockAligned:
    """To be added to this rank's times so that they are rank 0's; the error is at most so much."""

    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class StepTraced:
    """What one step was made of: about one step in a second is told in full.

    Attributes:
        step: from 1.
        spans: place, begin and end in wall-clock nanoseconds; in the order in which they ended.
    """

    step: int
    spans: list[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class StageEntered:
    """A precision stage of a root begins: `formats` as the plan computes in it."""

    root: str
    step: int
    formats: str


@dataclass(frozen=True, slots=True)
class ScaleChanged:
    """The loss scale of a root from this step on."""

    root: str
    step: int
    scale: float


@dataclass(frozen=True, slots=True)
class SloBreached:
    """A service level does not hold: seconds for `step_p99`, samples/s for `throughput`."""

    level: str
    limit: float
    measured: float
    step: int


@dataclass(frozen=True, slots=True)
class SloCleared:
    """A service level holds again."""

    level: str
    limit: float
    measured: float
    step: int


KINDS: dict[str, type] = {
    "rank_attached": RankAttached,
    "root_found": RootFound,
    "engine_chosen": EngineChosen,
    "path_chosen": PathChosen,
    "fallback_taken": FallbackTaken,
    "setting_overridden": SettingOverridden,
    "compile_started": CompileStarted,
    "compile_finished": CompileFinished,
    "graph_captured": GraphCaptured,
    "capture_missed": CaptureMissed,
    "guard_missed": GuardMissed,
    "contract_agreed": ContractAgreed,
    "diagnostic_raised": DiagnosticRaised,
    "note_added": NoteAdded,
    "step_finished": StepFinished,
    "program_written": ProgramWritten,
    "script_ended": ScriptEnded,
    "events_dropped": EventsDropped,
    "memory_measured": MemoryMeasured,
    "compile_phases": CompilePhases,
    "clock_aligned": ClockAligned,
    "step_traced": StepTraced,
    "stage_entered": StageEntered,
    "scale_changed": ScaleChanged,
    "slo_breached": SloBreached,
    "slo_cleared": SloCleared,
}
KIND_OF: dict[type, str] = {cls: kind for kind, cls in KINDS.items()}


def _is_seconds(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(took, float | int) for name, took in value.items()
    )


def _is_spans(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(span, list | tuple) and [type(part) for part in span] == [str, int, int]
        for span in value
    )


def _is_ranks(value: Any) -> bool:
    return all(type(rank) is int for rank in value)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (float, int),
    "float | None": (float, int, type(None)),
    "dict[str, Any]": dict,
    "dict[str, float]": dict,
    "list[int]": (list, tuple),
    "list[tuple[str, int, int]]": (list, tuple),
}
_INSIDE: dict[type, Callable[[Any], bool]] = {
    ContractAgreed: lambda event: _is_ranks(event.ranks),
    CompilePhases: lambda event: _is_seconds(event.seconds),
    StepTraced: lambda event: _is_spans(event.spans),
}
_FIELDS = {cls: tuple(_TYPES[str(each.type)] for each in fields(cls)) for cls in KIND_OF}


def decode(record: list[Any]) -> tuple[int, Any]:
    """`[kind, time_ns, *fields]` -> (time_ns, event).

    Raises:
        ValueError: the kind is not in the list, or the fields do not fit it.
    """
    kind, time_ns, *values = record
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"unknown event kind `{kind}` (this reader knows version {VERSION})")
    types = _FIELDS[cls]
    if len(values) != len(types):
        raise ValueError(f"event `{kind}` has {len(values)} fields, expected {len(types)}")
    event = cls(*values)
    inside = _INSIDE.get(cls)
    if not all(map(isinstance, values, types)) or (inside is not None and not inside(event)):
        raise ValueError(f"event `{kind}` has a field of another type")
    return time_ns, event
