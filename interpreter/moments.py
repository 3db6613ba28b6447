"""What `sgplan verify` keeps of a run: moments, one file each, in the order in which they happen.

A moment is a call of a root, a backward, or an optimizer's step. The ranks write it, the planned
run also reads those of the reference run, and the parent compares both. Knows the file, not what
the values mean.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

Kind = Literal["call", "backward", "update"]
Tensors = dict[str, torch.Tensor | None]


@dataclass(slots=True)
class Moment:
    """One moment of one rank.

    Attributes:
        kind, name: what happened to which root or optimizer.
        step: the step that it belongs to, from 0.
        values: by quantity, tensors by name; None for a gradient that is not there.
        facts: by quantity, what is compared exactly: numbers, words and lists of them. `overflow`
            and `skipped` say that the plan's loss scale was too large: the update is skipped then,
            and `skipped` names what moved all the same.
        notes: what could not be recorded, a sentence each.
    """

    kind: Kind
    name: str
    step: int
    values: dict[str, Tensors] = field(default_factory=dict[str, Tensors])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: list[str] = field(default_factory=list[str])


def folder_of(run: Path, rank: int) -> Path:
    """Where the moments of one rank lie in its run folder."""
    return run / f"moments-{rank}"


def ranks_in(run: Path) -> list[int]:
    """The ranks that left moments, in order."""
    found = (path.name.removeprefix("moments-") for path in run.glob("moments-*"))
    return sorted(int(number) for number in found)


def write(folder: Path, number: int, moment: Moment, save: Callable[..., Any]) -> None:
    """Write one moment.

    Args:
        save: `torch.save`, as it was before it was blocked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save(asdict(moment), folder / f"{number:06}.pt")


def read(folder: Path, number: int) -> Moment | None:
    """One moment; None when there is none of that number."""
    path = folder / f"{number:06}.pt"
    if not path.exists():
        return None
    return Moment(**torch.load(path, map_location="cpu", weights_only=True))


def count(folder: Path) -> int:
    """How many moments were begun; one that did not end has no file."""
    return max((int(path.stem) + 1 for path in folder.glob("*.pt")), default=0)


def drop(run: Path) -> None:
    """Remove the moments of all ranks in a run folder."""
    for rank in ranks_in(run):
        shutil.rmtree(folder_of(run, rank))
