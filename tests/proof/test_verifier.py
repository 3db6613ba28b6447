"""The order of the runs of a verification, and what is kept of it, on runs that were written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from sgplan.interpreter import moments
from sgplan.interpreter.moments import Moment, Tensors
from sgplan.planner.facts import Facts
from sgplan.proof.jobs import Done, JobFailed, Jobs
from sgplan.proof.verification import Verification
from sgplan.proof.verify import Verifier
from tests.planner.build import facts, plan_file, root

COMPILED = facts(replace(root(path="none", kind="module"), made_compiled=True), world=1)
STAGES = """precision "warm" { steps = ..9  compute = fp32 }
precision "main" { steps = 10..  compute = bf16 }"""

# The output of one step; raises for a job that fails.
Output = Callable[[str, int, set[str]], float]


@dataclass(slots=True)
class Written(Jobs):
    """Jobs whose runs are written here instead of being recorded by a script."""

    output: Output = lambda name, step, left: 1.0
    found: Facts = COMPILED
    ran: int = 3
    names: list[str] = field(default_factory=list[str])

    def run(self, name: str, says: str, **asked: Any) -> Done:
        self.started += 1
        self.names.append(name)
        folder = self.folder / name
        for step in range(self.ran):
            given = self.output(name, step + asked.get("offset", 0), set(asked.get("left_out", ())))
            value: Tensors = {"0": torch.tensor([given])}
            values: dict[str, Tensors] = {"gradients at the update": {}}
            for place, moment in enumerate(
                (
                    Moment("call", "model", step, {"outputs": value}),
                    Moment("update", "SGD", step, values),
                )
            ):
                moments.write(moments.folder_of(folder, 0), 2 * step + place, moment, torch.save)
        return Done(folder, (), (self.found,))


def verified(folder: Path, text: str, output: Output, **given: Any) -> tuple[Verification, Written]:
    file = plan_file(text)
    wanted = file.resolve(1, "cpu")
    jobs = Written(file, (), folder, wanted.verify.steps, 0, output=output, **given)
    return Verifier(jobs, wanted, Verification("failed", "p", (), "f")).answer(), jobs


def off(by: float, where: str) -> Output:
    """Another output by so much wherever one change acts in a planned run."""

    def output(name: str, step: int, left: set[str]) -> float:
        return 1.0 + (by if name != "plain" and where not in left else 0.0)

    return output


def test_one_of_several_blocks_is_blamed_with_its_own_line(tmp_path: Path) -> None:
    def output(name: str, step: int, left: set[str]) -> float:
        acts = name != "plain" and "cast_precision precision.main" not in left and step >= 10
        return 1.0 + 0.1 * acts

    found, _ = verified(tmp_path, STAGES, output)
    assert found.culprit is not None
    assert (found.culprit.name, found.culprit.clause, found.culprit.line) == (
        "cast_precision",
        "precision.main",
        4,
    )
    assert [stage.begins for stage in found.stages] == [0, 10]


def test_a_stage_has_the_tolerance_of_its_own_blocks(tmp_path: Path) -> None:
    warm, _ = verified(tmp_path / "warm", STAGES, off(0.01, "cast_precision precision.warm"))
    assert warm.first is not None
    assert warm.first.allowed == 1e-6
    main, _ = verified(
        tmp_path / "main",
        STAGES,
        lambda name, step, left: 1.0 + (0.01 if name == "planned-10" else 0.0),
    )
    assert main.ok


def test_a_step_has_the_tolerance_of_the_stage_that_it_is_in(tmp_path: Path) -> None:
    early = STAGES.replace("..9", "..0").replace("10..", "1..")

    def output(name: str, step: int, left: set[str]) -> float:
        return 1.0 + (0.01 if name != "plain" and step >= 1 else 0.0)

    found, _ = verified(tmp_path, early, output)
    assert found.ok, found.table


def test_a_search_that_fails_keeps_the_difference(tmp_path: Path) -> None:
    def output(name: str, step: int, left: set[str]) -> float:
        if name.startswith("first"):
            raise JobFailed("the script fell over (folder)")
        return 1.0 if name == "plain" else 2.0

    found, _ = verified(tmp_path, "capture { engine = inductor }", output)
    assert (found.outcome, found.culprit) == ("different", None)
    assert found.first is not None
    assert found.first.relative == 1.0
    assert found.stages
    assert any("the script fell over" in note for note in found.notes)
    assert "DIFFERENT" in found.table


def test_a_later_stage_that_fails_keeps_the_earlier_ones(tmp_path: Path) -> None:
    def output(name: str, step: int, left: set[str]) -> float:
        if name == "planned-10":
            raise JobFailed("the script fell over (folder)")
        return 1.0

    found, _ = verified(tmp_path, STAGES, output)
    assert (found.outcome, found.why) == ("failed", "the script fell over (folder)")
    assert [stage.begins for stage in found.stages] == [0]


def test_fewer_steps_than_the_plan_writes_prove_nothing(tmp_path: Path) -> None:
    def same(name: str, step: int, left: set[str]) -> float:
        return 1.0

    written, _ = verified(tmp_path / "1", "verify { steps = 3 }", same, ran=2)
    assert written.outcome == "failed"
    assert written.why == "the script ended after 2 of `verify.steps = 3`"
    default, _ = verified(tmp_path / "2", "", same, ran=2)
    assert default.ok
    assert default.notes == ("the script ended after 2 steps",)


def test_a_rank_that_recorded_nothing_is_a_failure(tmp_path: Path) -> None:
    found, _ = verified(
        tmp_path, "", lambda name, step, left: 1.0, found=replace(COMPILED, world=2)
    )
    assert (found.outcome, found.why) == ("failed", "no step of rank 1 was recorded in either run")


def test_nan_in_both_runs_is_said(tmp_path: Path) -> None:
    found, _ = verified(tmp_path, "", lambda name, step, left: float("nan"))
    assert found.notes == (
        "3 of 3 outputs hold NaN in both runs, which proves nothing about them; "
        "first rank 0, step 1, call model, 0",
    )
