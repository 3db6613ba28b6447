"""What a verification came to: as a value for tests, as a table, and as JSON.

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sgplan.proof.findings import Comparison, Culprit, Difference, Row

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """One comparison: the whole plan, or one precision stage of it.

    Attributes:
        begins: the step count that the stage is entered at.
        comparison: what was compared.
    """

    begins: int
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer of `sgplan.verify`.

    Attributes:
        outcome: `equal`, `different`, or `failed` when a run did not come to its end.
        plan, command, folder: what was verified, and where its runs lie.
        reference: which plain run it was compared with, in words.
        why: of a failure, one sentence.
        world, steps, seed: ranks, steps compared, and the seed of all random numbers.
        changes: what can change numbers under the plan: name, clause and line.
        stages: the comparisons; one, or one for each precision stage.
        culprit: who caused the first difference; None when there is none.
        first: the first difference; None when there is none.
        runs: how many times the command was started.
    """

    outcome: Literal["equal", "different", "failed"]
    plan: str
    command: tuple[str, ...]
    folder: str
    reference: str = ""
    why: str = ""
    world: int = 0
    steps: int = 0
    seed: int = 0
    changes: tuple[tuple[str, str, int | None], ...] = ()
    stages: tuple[Stage, ...] = ()
    culprit: Culprit | None = None
    first: Difference | None = None
    runs: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether the planned run equals the plain one."""
        return self.outcome == "equal"

    @property
    def table(self) -> str:
        """For people: what was compared, how far it differs, and who caused it."""
        return "\n".join(_lines(self))

    def assert_equal(self) -> None:
        """For tests: an AssertionError with the table unless the runs are equal."""
        if not self.ok:
            raise AssertionError(f"\n{self.table}")

    def to_json(self) -> dict[str, Any]:
        """The same as plain data; fields are described in docs/verify.md."""
        return {
            "sgplan_verify": JSON_VERSION,
            "outcome": self.outcome,
            "why": self.why,
            "plan": self.plan,
            "command": list(self.command),
            "folder": self.folder,
            "reference": self.reference,
            "world": self.world,
            "steps": self.steps,
            "seed": self.seed,
            "runs": self.runs,
            "notes": list(self.notes),
            "changes": [
                {"pass": name, "clause": clause, "line": line}
                for name, clause, line in self.changes
            ],
            "stages": [
                {"begins": stage.begins, "rows": [_row(row) for row in stage.comparison.rows]}
                for stage in self.stages
            ],
            "first": None if self.first is None else _difference(self.first),
            "culprit": None if self.culprit is None else asdict(self.culprit),
        }


def _row(row: Row) -> dict[str, Any]:
    return {
        "quantity": row.quantity,
        "compared": row.compared,
        "bitwise": row.bitwise,
        "failed": row.failed,
        "largest": _number(row.largest),
        "allowed": _number(row.allowed),
        "at": None if row.at is None else asdict(row.at),
        "verdict": row.verdict,
    }


def _difference(first: Difference) -> dict[str, Any]:
    return {
        "quantity": first.quantity,
        "at": asdict(first.place),
        "relative": _number(first.relative),
        "allowed": _number(first.allowed),
        "text": first.text,
    }


def _number(value: float) -> float | None:
    """JSON has no infinity: null is what no number can say."""
    return value if math.isfinite(value) else None


def _lines(found: Verification) -> list[str]:
    lines = [f"plan        {found.plan}"]
    if found.reference:
        lines.append(f"reference   {found.reference}")
    if found.world:
        ranks = f"{found.world} rank{'s' * (found.world != 1)}"
        lines.append(
            f"compared    {ranks}, {found.steps} step{'s' * (found.steps != 1)} each from the same "
            f"state, seed {found.seed}"
        )
    if found.changes:
        lines += ["", "what can change numbers under this plan"]
        width = max(len(name) for name, _, _ in found.changes)
        lines += [f"  {name:{width}}   {_where(c, line)}" for name, c, line in found.changes]
    for stage in found.stages:
        lines.append("")
        if len(found.stages) > 1:
            lines.append(f"precision stage that begins at step {stage.begins}")
        lines += _grid(stage.comparison.rows)
    lines += [f"note: {note}" for note in found.notes]
    return [*lines, "", *_verdict(found)]


def _grid(rows: list[Row]) -> list[str]:
    head = ("quantity", "compared", "bitwise", "difference", "allowed", "verdict", "largest at")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    right = {1, 2, 3, 4}
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _cells(row: Row) -> tuple[str, ...]:
    at = "" if row.verdict == "equal" or row.at is None else str(row.at)
    return (
        row.quantity,
        str(row.compared),
        str(row.bitwise),
        _shown(row.largest),
        _shown(row.allowed),
        row.verdict,
        at,
    )


def _shown(value: float) -> str:
    if not math.isfinite(value):
        return "any"
    return f"{value:.1e}" if value else "0"


def _verdict(found: Verification) -> list[str]:
    if found.outcome == "failed":
        return [f"failed: {found.why}"]
    if found.ok:
        every = all(r.bitwise == r.compared for s in found.stages for r in s.comparison.rows)
        return ["equal" + (" in every bit" if every else " within what the plan declares")]
    first = found.first
    lines = ["DIFFERENT"]
    if first is not None:
        far = first.text or f"by {_shown(first.relative)}, allowed {_shown(first.allowed)}"
        lines.append(f"  first   {first.quantity}, {first.place}: {far}")
    if found.culprit is not None:
        lines += _blame(found.culprit)
    return lines


def _blame(culprit: Culprit) -> list[str]:
    fields = {
        "pass": culprit.name,
        "clause": "" if not culprit.clause else _where(culprit.clause, culprit.line),
        "op": culprit.op,
        "module": culprit.module,
        "parameter": culprit.parameter,
        "bucket": culprit.bucket,
        "how": culprit.how,
    }
    width = max(len(name) for name in fields)
    return [f"  {name:{width}}   {text}" for name, text in fields.items() if text]


def _where(clause: str, line: int | None) -> str:
    return f"`{clause}`, by default" if line is None else f"`{clause}`, line {line}"
