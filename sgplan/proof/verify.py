"""A verification from a plan to an answer: the plain run, the planned one, and the search."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal

from sgplan import launch, runfolder
from sgplan.grammar.plan import Plan, PlanFile
from sgplan.loading import load
from sgplan.planner.leave_out import everything
from sgplan.planner.numerics import NumericChange, numeric_changes
from sgplan.planner.precision import begins_of
from sgplan.proof.compare import compare, computed_in
from sgplan.proof.findings import Comparison, Difference, Start
from sgplan.proof.jobs import Done, JobFailed, Jobs, resolved
from sgplan.proof.tolerance import Tolerance, tolerance
from sgplan.proof.trace import trace
from sgplan.proof.verification import Stage, Verification


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
    wanted = plan.resolve(_world(plan), "cpu")
    seed = wanted.verify.seed or 0
    jobs = Jobs(plan, command, folder.path, wanted.verify.steps, seed, progress, environ)
    begun = Verification(
        "failed", plan.source, command, folder.shown, steps=0, seed=seed, world=0
    )  # fmt: skip
    found = Verifier(jobs, wanted, begun).answer()
    if found.outcome == "equal":
        jobs.forget()
    (folder.path / "verify.txt").write_text(found.table + "\n", encoding="utf-8")
    return found


def _world(file: PlanFile) -> int:
    """A world that the plan fits; which rules it has does not hang on it."""
    mesh = next((b for b in file.merged(()).values() if b.kind == "mesh"), None)
    if mesh is None:
        return 1
    data, pipe = mesh.value("data", "rest"), mesh.value("pipe", 1)
    return pipe if data == "rest" else data * pipe


class Verifier:
    """The order of the runs.

    Args:
        wanted: the plan in some world.
        begun: the answer while nothing is known.
    """

    def __init__(self, jobs: Jobs, wanted: Plan, begun: Verification) -> None:
        self._jobs = jobs
        self._wanted = wanted
        self._found = begun

    def answer(self) -> Verification:
        """What the runs came to; what was found before one failed is in it too."""
        try:
            self._compare()
        except JobFailed as failed:
            self._know(outcome="failed", why=str(failed))
        self._know(runs=self._jobs.started)
        return self._found

    def _know(self, **fields: Any) -> None:
        self._found = replace(self._found, **fields)

    def _compare(self) -> None:
        """Compare the script with itself under every stage of the plan, up to a difference."""
        jobs = self._jobs
        left_out = everything(self._wanted)
        reference = jobs.run("plain", "the script as it is written", left_out=left_out, plain=True)
        if not reference.facts:
            raise JobFailed(f"no model was found in the script ({reference.path})")
        world = reference.facts[0].world
        plan = resolved(jobs.plan, reference.facts[0])
        computed = computed_in(reference.path)
        self._know(world=world)
        for offset in begins_of(plan.precisions):
            name = "planned" if not offset else f"planned-{offset}"
            says = "under the plan" if not offset else f"under the plan, from step {offset}"
            done = jobs.run(name, says, against=reference.path, offset=offset)
            if not done.facts:
                raise JobFailed(f"no model was found in the run {says} ({done.path})")
            changes = numeric_changes(plan, done.facts[0])
            # Steps are judged one by one: precision may change between them.
            acting = [
                numeric_changes(plan, done.facts[0], [step])
                for step in range(offset, offset + jobs.steps)
            ]
            allowed = [tolerance(each, plan.verify, world, computed) for each in acting]
            held = {change.key for each in acting for change in each}
            search = _Search(jobs, changes, held, reference, allowed, offset, world)
            comparison = search.compared(done)
            if comparison.start:
                search.exempt = search.changing()
                comparison = search.compared(done)
                self._note(*([_changing(search.exempt)] if search.exempt else []))
            self._note(*comparison.notes)
            self._know(
                reference=_described(done),
                changes=tuple((c.name, c.clause, c.span.line if c.span else None) for c in changes),
                stages=(*self._found.stages, Stage(offset, comparison)),
            )
            if comparison.first is not None:
                self._blame(search, comparison, done)
                return
            self._require_steps(plan, comparison)
        self._note(*self._unknown())
        self._know(outcome="equal")

    def _note(self, *notes: str) -> None:
        self._know(notes=tuple(dict.fromkeys((*self._found.notes, *notes))))

    def _require_steps(self, plan: Plan, comparison: Comparison) -> None:
        """Fewer steps than the plan asks for prove less than it says."""
        steps = min(stage.comparison.steps for stage in self._found.stages)
        self._know(steps=steps)
        skipped = max(stage.comparison.skipped for stage in self._found.stages)
        if skipped and not comparison.steps:
            raise JobFailed(
                "gradients overflowed under the loss scale in every step: nothing was compared "
                "(begin with a smaller scale, or let `verify.steps` be more)"
            )
        if skipped:
            many = "1 step was" if skipped == 1 else f"{skipped} steps were"
            self._note(f"{many} skipped under the loss scale, as the plan has it")
        if comparison.silent:
            ranks = ", ".join(map(str, comparison.silent))
            raise JobFailed(f"no step of rank {ranks} was recorded in either run")
        if steps + skipped >= self._jobs.steps:
            return
        if "steps" in plan.verify.written:
            raise JobFailed(
                f"the script ended after {steps} of `verify.steps = {plan.verify.steps}`"
            )
        self._note(f"the script ended after {steps} step{'s' * (steps != 1)}")

    def _unknown(self) -> list[str]:
        """What is equal and proves nothing."""
        rows = [r for stage in self._found.stages for r in stage.comparison.rows if r.nans]
        return [
            f"{row.nans} of {row.compared} {row.quantity} hold NaN in both runs, which proves "
            f"nothing about them; first {row.first_nan}"
            for row in rows
        ]

    def _blame(self, search: _Search, comparison: Comparison, done: Done) -> None:
        """Say who caused a difference; it stays one when a run of the search fails."""
        self._note(*self._unknown())
        self._know(outcome="different", first=comparison.first, steps=comparison.steps)
        try:
            traced = trace(search.changes, (comparison, done), search.attempt, search.probed)
        except JobFailed as failed:
            self._note(f"who caused it is not known: {failed}")
        else:
            self._know(culprit=traced.culprit, first=traced.first)


class _Search:
    """Runs under the first of the changes, against one reference.

    Args:
        every: all changes of the plan.
        held: keys of those that act in a step that is compared.
        allowed: in each step.

    Attributes:
        changes: those that act, in order.
        exempt: values at the start that are other ones in every plain run.
    """

    def __init__(
        self,
        jobs: Jobs,
        every: Sequence[NumericChange],
        held: Collection[str],
        reference: Done,
        allowed: Sequence[Tolerance],
        offset: int,
        world: int,
    ) -> None:
        self.changes = [change for change in every if change.key in held]
        self._jobs = jobs
        self._every = every
        self._reference = reference
        self._allowed = allowed
        self._offset = offset
        self._world = world
        self.exempt: frozenset[Start] = frozenset()

    def compared(self, done: Done) -> Comparison:
        """A run beside the plain one."""
        return compare(self._reference.path, done.path, self._allowed, self._world, self.exempt)

    def changing(self) -> frozenset[Start]:
        """What another plain run begins with other values of: it is not the plan that does that."""
        again = self._run("again", "the script as it is written, once more", (), None)
        found = compare(self._reference.path, again.path, [Tolerance()], self._world)
        return frozenset(found.start)

    def attempt(self, first: Sequence[NumericChange]) -> tuple[Comparison, Done]:
        names = ", ".join(change.name for change in first) or "nothing of the plan"
        done = self._run(f"first-{len(first)}", f"looking for the cause, with {names}", first, None)
        return self.compared(done), done

    def probed(
        self, change: NumericChange, first: Sequence[NumericChange], difference: Difference
    ) -> Done:
        step = min(difference.place.step, len(self._allowed)) - 1
        probe = change.name, self._allowed[step].forward, self._allowed[step].gradient
        return self._run("probe", f"the graphs before and after {change.name}", first, probe)

    def _run(
        self,
        name: str,
        says: str,
        first: Sequence[NumericChange],
        probe: tuple[str, float, float] | None,
    ) -> Done:
        left = {change.key for change in self._every} - {change.key for change in first}
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
