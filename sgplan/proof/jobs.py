"""The jobs of one verification: each a run of the command as `apply` starts one, recorded.

All lie in the folder of the verification, one folder each. Knows how a job is started and whether
it came to its end; compares nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sgplan import conclude
from sgplan.execution import Executed, Request, execute
from sgplan.failure import Failure
from sgplan.grammar.plan import Plan, PlanFile
from sgplan.interpreter import moments
from sgplan.planner import artefact
from sgplan.planner.facts import Facts, RootFact
from sgplan.planner.program import Program
from sgplan.verdict import judge_apply


class JobFailed(Failure):
    """A run of the command did not come to a step, or failed."""


@dataclass(frozen=True, slots=True)
class Done:
    """A run that was recorded.

    Attributes:
        path: its run folder.
        programs, facts: of its ranks; empty when no model was found.
    """

    path: Path
    programs: tuple[Program, ...]
    facts: tuple[Facts, ...]

    @property
    def roots(self) -> tuple[RootFact, ...]:
        return self.facts[0].roots if self.facts else ()


@dataclass(slots=True)
class Jobs:
    """Starts the jobs of one verification.

    Attributes:
        plan: checked.
        command: the user's own.
        folder: of the verification.
        progress: as in `Request`.
        variables: of the jobs' environment, beside the inherited ones.
        started: how many so far.
    """

    plan: PlanFile
    command: tuple[str, ...]
    folder: Path
    steps: int
    seed: int
    progress: str = "shown"
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    started: int = 0
    _done: list[Path] = field(default_factory=list[Path])

    def run(
        self,
        name: str,
        says: str,
        *,
        left_out: Collection[str] = (),
        against: Path | None = None,
        probe: tuple[str, float, float] | None = None,
        offset: int = 0,
        plain: bool = False,
    ) -> Done:
        """Run the command once.

        Args:
            name: of its folder.
            says: what a person is told that this run is.
            left_out: keys of what is left out of the plan.
            against: run folder of the reference run.
            probe: a pass whose graphs are run before and after it, and the relative differences
                of values and gradients that are allowed there.
            plain: all is left out: torch's own compiler has what the script compiles.

        Raises:
            JobFailed: the run ended before a step, or failed; its own words are on stderr.
        """
        self.started += 1
        if self.progress == "shown":
            print(f"sgplan: run {self.started}: {says}", file=sys.stderr, flush=True)
        task = {
            "steps": self.steps,
            "seed": self.seed,
            "offset": offset,
            "without": sorted(left_out),
            "against": None if against is None else str(against),
            "plain": plain,
            "probe": None if probe is None else probe[0],
            "forward": 0.0 if probe is None else probe[1],
            "gradient": 0.0 if probe is None else probe[2],
        }
        done = execute(
            Request(
                mode="verify",
                plan=self.plan,
                command=self.command,
                run_dir=str(self.folder / name),
                progress="silent",
                task=task,
                # Sets of strings are walked in another order in every process without it.
                variables={"PYTHONHASHSEED": str(self.seed % 2**32), **self.variables},
            )
        )
        self._done.append(done.folder.path)
        self._require_end(done, says)
        parts = [artefact.read_part(path) for path in done.folder.parts().values()]
        programs = tuple(part.program for part in parts)
        return Done(done.folder.path, programs, tuple(part.facts for part in parts))

    def forget(self) -> None:
        """Remove what was recorded: states and gradients of every step, rank and run."""
        for run in self._done:
            moments.drop(run)

    def _require_end(self, done: Executed, says: str) -> None:
        outcome = judge_apply(done)
        conclude.conclude(done, outcome)
        if outcome.status:
            raise JobFailed(f"{says} failed: {outcome.why} ({done.folder.shown})")


def resolved(plan: PlanFile, facts: Facts) -> Plan:
    """The plan as the ranks had it."""
    return plan.resolve(facts.world, facts.device)
