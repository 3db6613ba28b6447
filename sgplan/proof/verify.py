"""A verification from a plan to an answer: the plain run, the planned one, and the search."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal

from sgplan import launch, runfolder
from sgplan.grammar.plan import Plan, PlanFile
from sgplan.loading import load
from sgplan.planner.leave_out import NumericChange, everything, numeric_changes
from sgplan.planner.precision import begins_of
from sgplan.proof.compare import compare, computed_in
from sgplan.proof.findings import Comparison, Start
from sgplan.proof.jobs import SEED, Done, JobFailed, Jobs, resolved
from sgplan.proof.tolerance import Tolerance, tolerance
from sgplan.proof.trace import Traced, trace
from sgplan.proof.verification import Stage, Verification

STEPS = 3


def verify(
    plan: str,
    command: Sequence[str],
    *,
    run_dir: str | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    progress: Literal["shown", "silent"] = "silent",
) -> Verification:
    """As `sgplan.verify`; `progress = shown` says on stderr which run goes on."""
    loaded = load(plan, sets)
    return verify_plan(loaded.plan, tuple(command), run_dir, environ or {}, progress)


def verify_plan(
    plan: PlanFile,
    command: tuple[str, ...],
    run_dir: str | None,
    environ: Mapping[str, str],
    progress: Literal["shown", "silent"],
) -> Verification:
    """As `verify`, of a plan that is loaded."""
    launch.require_program(command)
    name = f"{PurePath(plan.source).stem or 'plan'}-verify"
    folder = runfolder.create(run_dir, name)
    wanted = next((block for block in plan.merged(()).values() if block.kind == "verify"), None)
    steps = STEPS if wanted is None else wanted.value("steps", STEPS)
    seed = SEED if wanted is None else wanted.value("seed", SEED)
    jobs = Jobs(plan, command, folder.path, steps, seed, progress, environ)
    frame: dict[str, Any] = {"plan": plan.source, "command": command, "folder": folder.shown}
    try:
        found = _Verifier(jobs).answer(frame)
    except JobFailed as failed:
        found = Verification("failed", **frame, why=str(failed), runs=jobs.started)
    if found.outcome == "equal":
        jobs.forget()
    (folder.path / "verify.txt").write_text(found.table + "\n", encoding="utf-8")
    return found


class _Verifier:
    """The order of the runs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._file = jobs.plan
        self._plan: Plan | None = None

    def answer(self, frame: dict[str, Any]) -> Verification:
        jobs = self._jobs
        reference = jobs.run(
            "plain", "the script as it is written", left_out=self._everything(), plain=True
        )
        if not reference.facts:
            raise JobFailed(f"no model was found in the script ({reference.path})")
        plan = resolved(self._file, reference.facts[0])
        stages: list[Stage] = []
        notes: list[str] = []
        traced: Traced | None = None
        changes: tuple[NumericChange, ...] = ()
        computed = computed_in(reference.path)
        done = reference
        for offset in begins_of(plan.precisions):
            name = "planned" if not offset else f"planned-{offset}"
            says = "under the plan" if not offset else f"under the plan, from step {offset}"
            done = jobs.run(name, says, against=reference.path, offset=offset)
            changes = numeric_changes(plan, done.roots)
            world = done.facts[0].world if done.facts else 1
            allowed = tolerance(plan, [change.name for change in changes], world, computed)
            comparison = compare(reference.path, done.path, allowed)
            search = _Search(jobs, changes, reference, allowed, offset)
            if comparison.start:
                search.exempt = search.changing()
                comparison = compare(reference.path, done.path, allowed, search.exempt)
                notes += [_changing(search.exempt)] if search.exempt else []
            notes += [note for note in comparison.notes if note not in notes]
            stages.append(Stage(offset, comparison))
            if comparison.first is None and not comparison.steps and comparison.skipped:
                raise JobFailed(
                    "gradients overflowed under the loss scale in every step: nothing was compared "
                    "(begin with a smaller scale, or let `verify.steps` be more)"
                )
            if comparison.first is not None:
                traced = trace(changes, (comparison, done), search.attempt, search.probed)
                break
        ok = all(stage.comparison.ok for stage in stages)
        steps = min(jobs.steps, *(stage.comparison.steps for stage in stages))
        skipped = max(stage.comparison.skipped for stage in stages)
        if skipped:
            many = "1 step was" if skipped == 1 else f"{skipped} steps were"
            notes.append(f"{many} skipped under the loss scale, as the plan has it")
        elif steps < jobs.steps:
            notes.append(f"the script ended after {steps} steps")
        return Verification(
            "equal" if ok else "different",
            **frame,
            reference=_described(done),
            world=reference.facts[0].world,
            steps=steps,
            seed=jobs.seed,
            changes=tuple((c.name, c.clause, c.span.line if c.span else None) for c in changes),
            stages=tuple(stages),
            culprit=None if traced is None else traced.culprit,
            first=None if traced is None else traced.first,
            runs=jobs.started,
            notes=tuple(notes),
        )

    def _everything(self) -> frozenset[str]:
        """What leaves nothing of the plan in any world."""
        every = [self._file.resolve(world, "cpu") for world in (self._world(),)]
        return everything(every[0])

    def _world(self) -> int:
        """A world that the plan fits; which rules it has does not hang on it."""
        mesh = next((b for b in self._file.merged(()).values() if b.kind == "mesh"), None)
        if mesh is None:
            return 1
        data, pipe = mesh.value("data", "rest"), mesh.value("pipe", 1)
        return pipe if data == "rest" else data * pipe


class _Search:
    """Runs under the first of the changes, against one reference."""

    def __init__(
        self,
        jobs: Jobs,
        changes: Sequence[NumericChange],
        reference: Done,
        allowed: Tolerance,
        offset: int,
    ) -> None:
        self._jobs = jobs
        self._changes = changes
        self._reference = reference
        self._allowed = allowed
        self._offset = offset
        self.exempt: frozenset[Start] = frozenset()

    def changing(self) -> frozenset[Start]:
        """What another plain run begins with other values of: it is not the plan that does that."""
        again = self._run("again", "the script as it is written, once more", (), None)
        return frozenset(compare(self._reference.path, again.path, Tolerance()).start)

    def attempt(self, first: Sequence[NumericChange]) -> tuple[Comparison, Done]:
        names = ", ".join(change.name for change in first) or "nothing of the plan"
        done = self._run(f"first-{len(first)}", f"looking for the cause, with {names}", first, None)
        found = compare(self._reference.path, done.path, self._allowed, self.exempt)
        return found, done

    def probed(self, change: NumericChange, first: Sequence[NumericChange]) -> Done:
        probe = change.name, self._allowed.forward, self._allowed.gradient
        return self._run("probe", f"the graphs before and after {change.name}", first, probe)

    def _run(
        self,
        name: str,
        says: str,
        first: Sequence[NumericChange],
        probe: tuple[str, float, float] | None,
    ) -> Done:
        left = {change.key for change in self._changes} - {change.key for change in first}
        if not first:
            left |= everything(resolved(self._jobs.plan, self._reference.facts[0]))
        return self._jobs.run(
            name, says, left_out=left, against=self._reference.path, probe=probe,
            offset=self._offset, plain=not first,
        )  # fmt: skip


def _changing(start: Collection[Start]) -> str:
    rank, quantity, tensor = min(start)
    others = f" and {len(start) - 1} more" if len(start) > 1 else ""
    return (
        f"the script begins with other values in every run ({quantity} `{tensor}` of rank {rank}"
        f"{others}): the planned run began with those of the plain one"
    )


def _described(planned: Done) -> str:
    """Which plain run the planned one is compared with, and what of it verify sets."""
    ddp = any(root.kind == "ddp" for root in planned.roots)
    compiled = any(root.engine == "inductor" for root in planned.roots)
    by_script = compiled and not any(root.made_compiled for root in planned.roots)
    engine = "compiled as it says" if by_script else "eager"
    drawn = "; compiled code draws random numbers as eager does" if compiled else ""
    return f"the script as it is written: {'stock DDP' if ddp else 'no DDP'}, {engine}{drawn}"
