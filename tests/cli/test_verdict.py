"""How a run is judged: a plan that did not take hold is no success, and the reason is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgplan.execution import Executed
from sgplan.grammar.diagnostics import Diagnostic
from sgplan.grammar.plan import PlanFile
from sgplan.interpreter import events
from sgplan.report import Run
from sgplan.runfolder import RunFolder
from sgplan.summary import Summary
from sgplan.verdict import isolating_options, judge_apply, judge_plan

ATTACHED = events.RankAttached(0, 1, 7, "/bin/python", "2.13.0", "apply")
ROOT = events.RootFound("model", "__main__:GPT", "ddp", 12, 1000)
STEP = events.StepFinished(1, 0.5, 0.0, 0.0, 8, None, False, 1, 0)


class Case:
    """A run that left these events and ended with this status."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def done(
        self,
        *happened: object,
        child: int | None = 0,
        command: tuple[str, ...] = ("train",),
        gone: bool = False,
    ) -> Executed:
        summary = Summary()
        for event in happened:
            summary.take(0, event)
        run = Run("apply", command, "plan.sgplan", str(self.folder), 0.0, 1.0)
        plan = PlanFile("plan.sgplan", "sgplan 1\n")
        return Executed(run, RunFolder(self.folder), plan, child, summary, (), gone=gone)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_step_under_the_plan_is_done(case: Case) -> None:
    outcome = judge_apply(case.done(ATTACHED, ROOT, STEP))
    assert (outcome.status, outcome.word, outcome.why) == (0, "done", "")


def test_a_rank_without_a_model_takes_no_steps(case: Case) -> None:
    """It may only feed the others, or be outside of the process group."""
    done = case.done(ATTACHED, ROOT, STEP)
    done.summary.take(1, ATTACHED)
    assert judge_apply(done).word == "done"
    done.summary.take(1, ROOT)
    assert judge_apply(done).word == "no_step"


def test_no_rank_at_all_is_a_failure(case: Case) -> None:
    outcome = judge_apply(case.done())
    assert (outcome.status, outcome.word) == (1, "no_step")
    assert "started no Python that loads torch" in outcome.why


@pytest.mark.parametrize(
    ("happened", "child", "status", "word", "severity"),
    [
        ((ATTACHED, ROOT, STEP), 0, 0, "done", "warning"),
        ((ATTACHED, ROOT), 0, 1, "deleted", "error"),
        ((), 0, 1, "deleted", "error"),
        ((ATTACHED, ROOT, STEP), 7, 7, "failed", "warning"),
    ],
)
def test_a_run_whose_folder_was_deleted_says_so(
    case: Case, happened: tuple[object, ...], child: int, status: int, word: str, severity: str
) -> None:
    outcome = judge_apply(case.done(*happened, child=child, gone=True))
    assert (outcome.status, outcome.word) == (status, word)
    assert outcome.diagnostic is not None
    assert (outcome.diagnostic.code, outcome.diagnostic.severity) == ("SG0906", severity)
    assert "no step ran" not in outcome.why


def test_an_isolated_python_is_the_reason(case: Case) -> None:
    outcome = judge_apply(case.done(command=("python3.11", "-uI", "train.py", "-E")))
    assert "isolated (`-I`)" in outcome.why


@pytest.mark.parametrize(
    ("command", "cure"),
    [
        (["python", "train.py", "-I"], None),
        (["torchrun", "train.py"], None),
        (["/venv/bin/python", "-u", "-E", "-m", "x"], "start Python without `-E`"),
        (["env", "A=1", "python3", "-I", "x.py"], "start Python without `-I`"),
        (["python", "-c", "IES"], None),
    ],
)
def test_only_the_interpreters_own_options_isolate(command: list[str], cure: str) -> None:
    found = isolating_options(command)
    assert (found and found[1]) == cure


def test_a_python_without_sgplan_is_the_reason(case: Case) -> None:
    (case.folder / "attach-failed-8.txt").write_text(
        "/other/python\ncannot import sgplan\nNo module named 'sgplan'\n"
    )
    outcome = judge_apply(case.done())
    assert "/other/python cannot import sgplan (No module named 'sgplan')" in outcome.why


def test_what_is_unsupported_is_named(case: Case) -> None:
    note = events.NoteAdded("unsupported", "the script uses FSDP, which sgplan leaves alone")
    outcome = judge_apply(case.done(ATTACHED, note))
    assert outcome.status == 1
    assert outcome.why.endswith("the script uses FSDP, which sgplan leaves alone")


def test_inference_is_named_for_what_it_is(case: Case) -> None:
    assert "only runs inference" in judge_apply(case.done(ATTACHED)).why


def test_a_process_that_trained_nothing_counts_as_attached(case: Case) -> None:
    (case.folder / "attached-8.txt").write_text("/bin/python\nsingle\n")
    assert "only runs inference" in judge_apply(case.done()).why
    assert "had attached to 1 rank and found no model yet" in judge_apply(case.done(child=1)).why


def test_a_root_without_a_step_is_named(case: Case) -> None:
    why = judge_apply(case.done(ATTACHED, ROOT)).why
    assert why == (
        "no step ran under the plan: `model` (__main__:GPT) was found, "
        "but no backward pass and step followed"
    )


def test_a_script_that_fails_early_keeps_its_status(case: Case) -> None:
    outcome = judge_apply(case.done(ATTACHED, ROOT, child=3))
    assert (outcome.status, outcome.word) == (3, "failed")
    assert outcome.why == (
        "the command ended with status 3 before its first step; "
        "sgplan had attached to 1 rank and found `model` (__main__:GPT)"
    )


def test_a_script_that_fails_late_keeps_its_status(case: Case) -> None:
    outcome = judge_apply(case.done(ATTACHED, ROOT, STEP, child=137))
    assert outcome.why == "the command was ended by SIGKILL after 1 step under the plan"


def test_a_refusal_is_a_failure_even_when_a_wrapper_hides_it(case: Case) -> None:
    refusal = events.DiagnosticRaised(Diagnostic("SG0501", "no match").to_wire())
    outcome = judge_apply(case.done(ATTACHED, ROOT, refusal, child=0))
    assert (outcome.status, outcome.word, outcome.why) == (1, "refused", "refused: no match")


def test_a_warning_is_no_refusal(case: Case) -> None:
    warning = Diagnostic("SG0502", "hm", severity="warning").to_wire()
    assert judge_apply(case.done(ATTACHED, STEP, events.DiagnosticRaised(warning))).status == 0


def test_a_second_interrupt_is_said(case: Case) -> None:
    outcome = judge_apply(case.done(ATTACHED, STEP, child=None))
    assert (outcome.status, outcome.word) == (130, "killed")


def test_a_plan_needs_a_program(case: Case) -> None:
    assert judge_plan(case.done(ATTACHED, ROOT)).word == "not_planned"
    (case.folder / "program-0.msgpack").write_bytes(b"")
    assert judge_plan(case.done(ATTACHED, ROOT)).word == "planned"
