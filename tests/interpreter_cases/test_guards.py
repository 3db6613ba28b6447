"""Guards on plain scripts, from the plan to the report: variants, misses, ranks that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgplan.interpreter import events
from tests.gloo.harness import Job, run_job

from .kit import CASES, close, plain, planned, result, results

pytestmark = [pytest.mark.gloo, pytest.mark.slow]
SCRIPT = "guarded.py"


def plan(*guards: str, capture: str = "") -> str:
    return "\n".join(["sgplan 1", capture, *guards, ""])


def compiles(job: Job, rank: int = 0) -> int:
    return len(job.of(events.CompileFinished, rank))


def misses(job: Job, rank: int = 0) -> list[events.GuardMissed]:
    return job.of(events.GuardMissed, rank)


def report(job: Job) -> Any:
    assert job.run is not None
    return json.loads((job.run / "report.json").read_text())


def same(script: Job, ours: Job, case: str, nproc: int = 1, tolerance: float = 1e-5) -> None:
    for rank in range(nproc):
        close(result(script, case, rank), result(ours, case, rank), tolerance)


BATCHES = 'guard "batch" { on = input[0].shape[0]  allow = [%s] }'


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Job:
    cases = ["batches", "lengths", "b022", "b030", "b032", "modes"]
    cases += ["b024", "b026", "b028", "classes"]
    return plain(SCRIPT, *cases, folder=tmp_path_factory.mktemp("plain"), nproc=1)


def test_declared_batches_are_one_compile_each_and_none_later(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "batches", folder=tmp_path, plan=plan(BATCHES % "17, 32, 64"), nproc=1)
    assert compiles(job) == 3
    assert misses(job) == []
    same(stock, job, "batches")


def test_a_ragged_batch_beyond_the_list_is_one_miss_with_its_cost_and_its_line(
    stock: Job, tmp_path: Path
) -> None:
    job = planned(SCRIPT, "batches", folder=tmp_path, plan=plan(BATCHES % "32, 64"), nproc=1)
    assert compiles(job) == 3
    (miss,) = misses(job)
    assert (miss.guard, miss.old, miss.new, miss.did) == ("guard.batch", "64", "17", "recompiled")
    assert miss.where.startswith("guarded.py:")
    assert miss.line == 'guard "batch" { on = input[0].shape[0]  allow = [17, 32, 64] }'
    assert miss.seconds == job.of(events.CompileFinished)[2].seconds
    (recompile,) = report(job)["recompiles"]
    assert recompile["seconds"] == miss.seconds
    assert "allow = [17, 32, 64]" in job.stderr
    same(stock, job, "batches")


def test_otherwise_error_stops_at_the_first_miss_and_names_the_value(tmp_path: Path) -> None:
    text = plan('guard "batch" { on = input[0].shape[0]  allow = [32, 64]  otherwise = error }')
    job = run_job(CASES / SCRIPT, "batches", folder=tmp_path, nproc=2, plan=text, timeout=280)
    assert job.returncode == 1
    assert not job.orphans
    assert "SG0721" in job.stderr
    assert "`input[0].shape[0]` is 17, which `guard.batch` does not allow" in job.stderr
    assert len(job.of(events.StepFinished)) == 4


def test_growing_lengths_in_a_range_are_one_compile(stock: Job, tmp_path: Path) -> None:
    text = plan('guard "length" { on = input[0].shape[1]  allow = 2..64 }')
    job = planned(SCRIPT, "lengths", folder=tmp_path, plan=text, nproc=1)
    assert compiles(job) == 1
    assert misses(job) == []
    same(stock, job, "lengths")


def test_a_spent_budget_is_an_error_or_eager(stock: Job, tmp_path: Path) -> None:
    guard = 'guard "length" { on = input[0].shape[1]  allow = [4]  budget = 1 %s}'
    job = run_job(
        CASES / SCRIPT, "lengths", folder=tmp_path / "e", nproc=1, plan=plan(guard % ""),
        timeout=280,
    )  # fmt: skip
    assert job.returncode == 1
    assert "SG0722" in job.stderr
    assert "the budget of `guard.length`, 1, is spent" in job.stderr
    job = planned(
        SCRIPT, "lengths", folder=tmp_path / "g", nproc=1, plan=plan(guard % " spent = eager ")
    )
    assert compiles(job) == 2
    assert [m.did for m in misses(job)] == ["recompiled", *["ran eagerly"] * 4]
    assert any("fell back to eager" in f.what for f in job.of(events.FallbackTaken))
    same(stock, job, "lengths")


def test_ranks_that_see_different_shapes_stay_in_step(tmp_path: Path) -> None:
    script = plain(SCRIPT, "uneven", folder=tmp_path / "plain")
    text = plan('guard "batch" { on = input[0].shape[0]  allow = [8]  budget = 1 }')
    job = planned(SCRIPT, "uneven", folder=tmp_path / "planned", plan=text)
    assert [compiles(job, rank) for rank in range(2)] == [2, 2]
    same(script, job, "uneven", nproc=2, tolerance=1e-6)
    one, other = results(job, "uneven")
    assert one["weights"] == other["weights"]


AS_WRITTEN = "capture { engine = as_written }"


@pytest.mark.parametrize(
    ("case", "text", "says"),
    [
        (
            "numbered",
            plan('guard "n" { on = input[0].shape[0]  allow = 2..8 }'),
            "SG0726]: the graph holds for `input[0].shape[0]` = 8 only",
        ),
        (
            "types",
            plan('guard "t" { on = input[*].dtype  otherwise = error }'),
            "SG0721]: `input[*].dtype` is float64, which `guard.t` does not allow",
        ),
        (
            "mixing",
            plan('guard "n" { on = input[0].shape[0] }', capture=AS_WRITTEN),
            "SG0725]: no captured call came past `guard.n`",
        ),
        (
            "mixing",
            plan('guard "n" { on = input["ids"].shape[0] }'),
            'SG0724]: `input["ids"].shape[0]` names no argument of `forward`',
        ),
    ],
)
def test_what_a_guard_cannot_hold_refuses_the_run(
    case: str, text: str, says: str, tmp_path: Path
) -> None:
    job = run_job(CASES / SCRIPT, case, folder=tmp_path, nproc=1, plan=text, timeout=280)
    assert job.returncode == 1
    assert not job.orphans
    assert says in job.stderr


INDUCTOR = "capture { engine = inductor }"


def test_b022_a_counter_is_two_compiles_and_named(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "b022", folder=tmp_path, plan=plan(capture=INDUCTOR), nproc=1)
    assert compiles(job) == 2
    (miss,) = misses(job)
    assert (miss.path, miss.old, miss.new) == ("module.counter", "0", "1")
    assert miss.why == "fn.__self__.counter == 0"
    assert result(job, "b022")["counter"] == 20
    same(stock, job, "b022")


def test_b022_a_counter_that_is_declared_is_one_compile_beside_zero_and_one(
    stock: Job, tmp_path: Path
) -> None:
    text = plan('guard "count" { on = module.counter  allow = 0.. }')
    job = planned(SCRIPT, "b022", folder=tmp_path, plan=text, nproc=1)
    assert compiles(job) == 3
    assert misses(job) == []
    same(stock, job, "b022")


def test_b024_evaluation_first_does_not_take_the_gradients(stock: Job, tmp_path: Path) -> None:
    for name, text in (("bare", plan()), ("guarded", plan(BATCHES % "8"))):
        job = planned(SCRIPT, "b024", folder=tmp_path / name, plan=text, nproc=1)
        assert compiles(job) == 2
        found = result(job, "b024")
        assert found["evaluated"][1] < found["evaluated"][0]
        same(stock, job, "b024")


def test_b026_twelve_blocks_of_one_class_are_all_compiled(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "b026", folder=tmp_path, plan=plan(), nproc=1)
    assert compiles(job) == 12
    assert not job.of(events.CaptureMissed)
    same(stock, job, "b026")


def test_b028_sizes_without_end_fall_back_and_say_so(stock: Job, tmp_path: Path) -> None:
    off = "capture { dynamic = off }"
    job = planned(SCRIPT, "b028", folder=tmp_path / "eager", plan=plan(capture=off), nproc=1)
    assert any("fell back to eager" in e.why for e in job.of(events.CaptureMissed))
    assert "fell back to eager" in job.stderr
    same(stock, job, "b028")
    text = plan('guard "batch" { on = input[0].shape[0]  spent = error }', capture=off)
    job = run_job(CASES / SCRIPT, "b028", folder=tmp_path / "e", nproc=1, plan=text, timeout=280)
    assert job.returncode == 1
    assert "the budget of `guard.batch`, 4, is spent" in job.stderr


def test_b030_a_float_argument_is_two_compiles_or_one(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "b030", folder=tmp_path / "bare", plan=plan(), nproc=1)
    assert compiles(job) == 2
    (miss,) = misses(job)
    assert (miss.path, miss.old, miss.new) == ('input["temperature"]', "2.0", "1.95")
    same(stock, job, "b030")
    text = plan('guard "heat" { on = input["temperature"]  allow = 0.1..3.0 }')
    job = planned(SCRIPT, "b030", folder=tmp_path / "guarded", plan=text, nproc=1)
    assert compiles(job) == 1
    same(stock, job, "b030")


def test_b032_a_loss_threshold_is_right_at_every_value(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "b032", folder=tmp_path, plan=plan(), nproc=1)
    # Its kernel takes the threshold as a number of the code, so every value has code of its own.
    assert [m.path for m in misses(job)] == ["input[2]"] * 5
    assert not job.of(events.CaptureMissed)
    same(stock, job, "b032")


def test_modes_and_rates_change_without_a_third_compile(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "modes", folder=tmp_path, plan=plan(), nproc=1)
    assert compiles(job) == 2
    # Compiled code draws other numbers than eager code, so the weights are not the plain script's;
    # in evaluation nothing is drawn, and the same weights give the same loss.
    for found in (result(job, "modes"), result(stock, "modes")):
        assert found["losses"] == pytest.approx(found["eager"], rel=1e-5)
        assert len(found["losses"]) == 3


PAD = 'guard "batch" { on = input[0].shape[0]  allow = [%s]  otherwise = pad(with = 0%s) }'


def test_padding_that_is_proved_changes_no_number(stock: Job, tmp_path: Path) -> None:
    job = planned(SCRIPT, "batches", folder=tmp_path, plan=plan(PAD % ("32, 64", "")), nproc=1)
    assert compiles(job) == 2
    assert [m.did for m in misses(job)] == ["padded to 32"] * 2
    same(stock, job, "batches")


def test_an_ignored_class_takes_padded_rows_out_of_a_loss(stock: Job, tmp_path: Path) -> None:
    text = plan(PAD % ("8", ", ignore = -100"))
    job = planned(SCRIPT, "classes", folder=tmp_path, plan=text, nproc=1)
    assert compiles(job) == 1
    assert [m.did for m in misses(job)] == ["padded to 8"] * 2
    same(stock, job, "classes")


def test_a_mask_takes_padded_positions_out_of_a_mean(stock: Job, tmp_path: Path) -> None:
    guard = 'guard "length" { on = input[0].shape[1]  allow = [4, 8, 16]  otherwise = %s }'
    job = planned(
        SCRIPT, "lengths", folder=tmp_path, nproc=1,
        plan=plan(guard % 'pad(with = 0, mask = "mask")'),
    )  # fmt: skip
    assert compiles(job) == 3
    same(stock, job, "lengths")


def test_padding_without_a_proof_names_the_op(tmp_path: Path) -> None:
    job = run_job(
        CASES / SCRIPT, "mixing", folder=tmp_path, nproc=1, plan=plan(PAD % ("8", "")), timeout=280
    )
    assert job.returncode == 1
    assert "SG0723" in job.stderr
    assert "`aten.mean` reduces over the rows" in job.stderr
    assert not job.of(events.StepFinished)
