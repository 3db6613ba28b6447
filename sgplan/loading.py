"""A plan from a path: checked `.sgplan` text, or the saved plan inside a `.sgpx`.

Knows which of the two a file is. What is wrong with a plan is the grammar's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgplan.failure import Failure
from sgplan.grammar.planfile import PlanFile
from sgplan.refusal import RefusedPlan, print_diagnostics

MAGIC = b"sgpx"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked plan; `expect` has the digests that a saved plan's run must reproduce."""

    plan: PlanFile
    expect: dict[str, Any] | None = None


def load(path: str, sets: Sequence[str]) -> Loaded:
    """Read and check a plan.

    Raises:
        Failure: the file cannot be read.
        Refused: the plan, or the saved plan, is not usable.
    """
    data = read_bytes(path)
    if is_artefact(path, data):
        return _load_artefact(path, sets)
    from sgplan.grammar.source import decode

    return Loaded(checked(path, decode(data, path), sets))


def checked(name: str, text: str, sets: Sequence[str]) -> PlanFile:
    """The checked plan; warnings are shown at once.

    Raises:
        RefusedPlan: there are errors.
    """
    from sgplan.grammar.check import check_text, sources_of

    plan, problems = check_text(text, name, sets)
    sources = sources_of(text, name, sets)
    if plan is None:
        raise RefusedPlan(problems, sources)
    print_diagnostics(problems, sources)
    return plan


def is_artefact(path: str, data: bytes) -> bool:
    """Whether this is a saved plan, by name or by content."""
    return path.endswith(".sgpx") or data.startswith(MAGIC)


def read_bytes(path: str) -> bytes:
    """The file's content.

    Raises:
        Failure: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Failure(f"the plan `{path}` cannot be read: {error.strerror or error}") from error


def _load_artefact(path: str, sets: Sequence[str]) -> Loaded:
    from sgplan.planner import artefact
    from sgplan.planner.safety import require_safe

    if sets:
        raise Failure("`--set` cannot change a saved plan: plan again, or apply the .sgplan file")
    saved = artefact.read(Path(path))
    require_safe([part.program for part in saved.parts])
    return Loaded(saved.plan, {rank: dict(found) for rank, found in saved.digests.items()})
