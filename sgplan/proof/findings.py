"""What comparing two runs finds, as data: rows, the first difference, and who caused it.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is: rank, step from 1, the moment's kind and name, the tensor's name."""

    rank: int
    step: int
    moment: str
    tensor: str

    def __str__(self) -> str:
        parts = [f"rank {self.rank}", f"step {self.step}", self.moment, self.tensor]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value that differs by more than is allowed.

    Attributes:
        relative: to the largest absolute value; infinite when it cannot be compared.
        allowed: the same.
        text: what differs when it is no number.
    """

    quantity: str
    place: Place
    relative: float
    allowed: float
    text: str = ""


@dataclass(slots=True)
class Row:
    """One quantity over all moments of all ranks.

    Attributes:
        compared, bitwise: values, and those among them that are equal in every bit.
        largest: the largest relative difference, and `at` where it is.
        allowed: the relative difference that is allowed there.
        failed, nans: values that differ by more, and those that hold NaN in both runs.
        first_nan: where the first of them is.
    """

    quantity: str
    compared: int = 0
    bitwise: int = 0
    largest: float = 0.0
    allowed: float = 0.0
    at: Place | None = None
    failed: int = 0
    nans: int = 0
    first_nan: Place | None = None

    @property
    def verdict(self) -> Literal["equal", "within", "DIFFERENT"]:
        if self.failed:
            return "DIFFERENT"
        return "equal" if self.bitwise == self.compared else "within"


# Rank, quantity and tensor of a value that a run begins with.
Start = tuple[int, str, str]


@dataclass(slots=True)
class Comparison:
    """What two runs have in common and what not.

    Attributes:
        steps: that came to their end in both runs, on every rank.
        silent: ranks that recorded no backward and no update in either run.
        skipped: updates that the plan's loss scale had the planned run skip.
        start: values that differ before the first step.
        notes: what could not be compared, a sentence each.
    """

    rows: list[Row] = field(default_factory=list[Row])
    first: Difference | None = None
    steps: int = 0
    skipped: int = 0
    start: list[Start] = field(default_factory=list[Start])
    notes: list[str] = field(default_factory=list[str])
    silent: list[int] = field(default_factory=list[int])

    @property
    def ok(self) -> bool:
        return self.first is None and self.steps > 0


@dataclass(frozen=True, slots=True)
class Culprit:
    """What made the runs different.

    Attributes:
        name: of the pass; `the script` when two plain runs differ already.
        clause, line: the block of the plan that asks for it, and its line; None by default.
        op, module: where in the model, as far as that is known, else empty.
        parameter, bucket: whose gradient or value it is, and where it travels.
        how: in words.
    """

    name: str
    clause: str = ""
    line: int | None = None
    op: str = ""
    module: str = ""
    parameter: str = ""
    bucket: str = ""
    how: str = ""
