"""Values of attributes that need a class: ranges, selectors, calls.

Apart from the classes of blocks in `clauses.py`, because `sgplan check` needs no block class and
starts the sooner. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a guard allows of a tensor's type, of its device, and of a switch such as `training`.
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "bool")
DEVICES = ("cpu", "cuda")
SWITCHES = ("on", "off")


@dataclass(frozen=True, slots=True)
class Interval:
    """A range of whole numbers, both ends included; None is open."""

    low: int | None
    high: int | None

    def __contains__(self, number: float) -> bool:
        return (self.low is None or self.low <= number) and (
            self.high is None or number <= self.high
        )

    def __str__(self) -> str:
        return f"{'' if self.low is None else self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True, slots=True)
class RealInterval:
    """A range of numbers of which one end at least is not whole, both ends included."""

    low: float | None
    high: float | None

    def __contains__(self, number: float) -> bool:
        return (self.low is None or self.low <= number) and (
            self.high is None or number <= self.high
        )

    def __str__(self) -> str:
        ends = ("" if end is None else f"{end!r}" for end in (self.low, self.high))
        return "..".join(ends)


@dataclass(frozen=True, slots=True)
class Selector:
    """Ops under a module glob: `"layers.*"::aten.gelu`; either part may be missing."""

    glob: str | None
    op: str | None

    def __str__(self) -> str:
        glob = None if self.glob is None else f'"{self.glob}"'
        return "::".join(part for part in (glob, self.op) if part is not None)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Steps along the data flow, each a choice of selectors: `bias -> aten.gelu | aten.relu`."""

    steps: tuple[tuple[Selector, ...], ...]

    def __str__(self) -> str:
        return " -> ".join(" | ".join(map(str, choice)) for choice in self.steps)


@dataclass(frozen=True, slots=True)
class GuardPath:
    """What a guard looks at: `input[0].shape[1]`, `input[*].dtype`, `input["temperature"]`,
    `module["layers.0"].counter`.

    Attributes:
        input: place or name of an argument, `*` for every tensor; of an attribute the path of the
            module that has it, empty for the model itself.
        dim: of a shape.
        attribute: its name.
    """

    input: int | str
    what: Literal["shape", "dtype", "device", "value", "attribute"]
    dim: int | None = None
    attribute: str | None = None

    def __str__(self) -> str:
        key = self.input if self.input == "*" or isinstance(self.input, int) else f'"{self.input}"'
        if self.what == "attribute":
            owner = f"module[{key}]" if self.input else "module"
            return f"{owner}.{self.attribute}"
        end = {"shape": f".shape[{self.dim}]", "value": ""}.get(self.what, f".{self.what}")
        return f"input[{key}]{end}"


@dataclass(frozen=True, slots=True)
class Steps:
    """A number of training steps, where a time may stand as well."""

    count: int


@dataclass(frozen=True, slots=True)
class Triton:
    """`triton("file:kernel", reference = "file:function", tolerance = 1e-5)`."""

    kernel: str
    reference: str | None = None
    backward: str | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class MinGain:
    """`min_gain(1.1)`: fuse only when the predicted speed-up is at least this."""

    ratio: float


@dataclass(frozen=True, slots=True)
class Stage:
    """`stage(0, "tok")`: these modules belong to that stage."""

    index: int
    globs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interleaved:
    """`interleaved(2)`: that many chunks of the model on every stage."""

    chunks: int


@dataclass(frozen=True, slots=True)
class Grid:
    """`grid("schedule.csv")`: the schedule is read from a file."""

    file: str


@dataclass(frozen=True, slots=True)
class Weighted:
    """`weighted("tokens")`: the loss is a mean weighted by that argument."""

    argument: str


@dataclass(frozen=True, slots=True)
class Pad:
    """`pad(with = 0, ignore = -100)`: how an input is padded to an allowed size."""

    with_: float
    ignore: int | None = None
    mask: str | None = None
    weight: str | None = None


@dataclass(frozen=True, slots=True)
class Dynamic:
    """`dynamic(init = 65536, growth = 2, backoff = 0.5, every = 2000)`: a moving loss scale."""

    init: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    every: int = 2000


VALUE_CLASSES: tuple[type, ...] = (
    Interval,
    RealInterval,
    Selector,
    Pattern,
    GuardPath,
    Steps,
    Triton,
    MinGain,
    Stage,
    Interleaved,
    Grid,
    Weighted,
    Pad,
    Dynamic,
)

PYTHON_WORDS = ("is", "in", "except", "with", "from")


def field_name(attribute: str) -> str:
    """The field of a block's class that holds an attribute."""
    if attribute == "kind":
        return "order"
    return f"{attribute}_" if attribute in PYTHON_WORDS else attribute
