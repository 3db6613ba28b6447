"""`sgplan verify` on real runs: equal where the plan is right, different where a pass is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sgplan
from sgplan.failure import Failure
from sgplan.grammar.diagnostics import Refused
from tests.gloo.harness import Job, run_job

pytestmark = pytest.mark.gloo

CASES = Path(__file__).parent.parent / "cases"
PLANS = Path(__file__).parents[2] / "plans"
SCRIPT = CASES / "verified.py"

HOOKS = """sgplan 1
sync   { bucket = 4KiB  first_bucket = 2KiB }
update { optimizer = fused }
"""
WIRE = "sgplan 1\nsync { bucket = 4KiB  first_bucket = 2KiB  wire = bf16 }\n"
EAGER = "sgplan 1\nupdate { optimizer = fused }\n"
GRAPH = """sgplan 1
capture { engine = inductor }
sync    { bucket = 4KiB  first_bucket = 2KiB  by = in_graph }
"""
ALONE = "sgplan 1\ncapture { engine = inductor }\n"
RULE = 'sgplan 1\nfuse "bias_gelu" { match = bias -> aten.gelu }\n'
KERNEL = """sgplan 1
fuse "bias_gelu" { match = bias -> aten.gelu  with = triton("sgplan:bias_gelu") }
"""
KEPT = 'sgplan 1\nprecision "main" { compute = bf16  keep_fp32 = ["clock"] }\n'
SCALED = 'sgplan 1\nprecision "main" { loss_scale = 1024 }\n'
OVERFLOW = """sgplan 1
precision "main" { compute = fp16  loss_scale = dynamic(init = 67108864, backoff = 0.0001) }
"""
STORED = 'sgplan 1\nprecision "main" { params = bf16  master = fp32 }\n'
HALF = "sgplan 1\nrecompute { memory = 50% }\n"
PADDED = """sgplan 1
guard "batch" { on = input[0].shape[0]  allow = [24]  otherwise = pad(with = 0) }
"""


def verified(
    folder: Path,
    plan: str,
    *args: str,
    nproc: int = 2,
    script: Path = SCRIPT,
    env: dict[str, str] | None = None,
) -> tuple[Job, dict[str, Any]]:
    """`sgplan verify --json` of a script, which must end with 0 or 1."""
    job = run_job(
        script, *args, folder=folder, nproc=nproc, plan=plan, verb=("verify", "--json"),
        timeout=500, env=env,
    )  # fmt: skip
    assert not job.orphans
    assert job.returncode in (0, 1), job.output
    return job, json.loads(job.stdout)


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["quantity"]: row for row in found["stages"][0]["rows"]}


def faulty(
    folder: Path, fault: str, plan: str, nproc: int, *args: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The culprit and the first difference that `verify` finds for a wrong pass."""
    env = {"FAULTY_PASS": fault, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    job, found = verified(folder, plan, *args, nproc=nproc, env=env)
    assert job.returncode == 1
    assert found["outcome"] == "different", job.output
    return found["culprit"], found["first"]


def test_an_eager_script_on_hooks_is_equal_in_every_bit(tmp_path: Path) -> None:
    job, found = verified(tmp_path, HOOKS)
    assert (job.returncode, found["outcome"], found["steps"]) == (0, "equal", 3)
    exact = [row for row in found["stages"][0]["rows"] if row["quantity"] != "parameters"]
    assert all(row["bitwise"] == row["compared"] for row in exact)
    assert rows(found)["parameters"]["verdict"] == "within"  # a fused step
    assert rows(found)["gradients"]["allowed"] == 0
    assert "stock DDP, eager" in found["reference"]
    assert found["runs"] == 2
    assert not list((tmp_path / "run").glob("*/moments-*"))


def test_a_reduction_that_scales_twice_is_found(tmp_path: Path) -> None:
    culprit, first = faulty(tmp_path, "scales_twice", HOOKS, 2)
    assert (culprit["name"], culprit["clause"], culprit["line"]) == ("insert_reductions", "sync", 2)
    assert culprit["bucket"].startswith("b")
    assert (tmp_path / "run" / "planned" / "moments-1").exists()  # to be looked at
    assert first["quantity"] == "gradients"
    assert first["relative"] == pytest.approx(0.5)


def test_a_fused_optimizer_that_forgets_weight_decay_is_found(tmp_path: Path) -> None:
    culprit, first = faulty(tmp_path, "forgets_weight_decay", EAGER, 0)
    assert (culprit["name"], culprit["line"]) == ("insert_updates", 2)
    assert first["quantity"] == "optimizer settings"


@pytest.mark.slow
def test_an_eager_script_made_compiled_is_equal_within_fp32(tmp_path: Path) -> None:
    job, found = verified(tmp_path, GRAPH)
    assert job.returncode == 0, job.output
    assert rows(found)["outputs"]["largest"] <= 1e-6
    assert rows(found)["gradients"]["largest"] <= 1e-5
    assert rows(found)["random state"]["verdict"] == "equal"


@pytest.mark.slow
def test_a_compiled_script_is_verified_against_stock_compiled_ddp(tmp_path: Path) -> None:
    job, found = verified(tmp_path, "sgplan 1\nsync { bucket = 4KiB }\n", "compile")
    assert job.returncode == 0, job.output
    assert "compiled as it says" in found["reference"]


@pytest.mark.slow
@pytest.mark.parametrize("args", [(), ("compile",), ("autocast",), ("compile", "autocast")])
def test_one_process_without_ddp(tmp_path: Path, args: tuple[str, ...]) -> None:
    job, found = verified(tmp_path, ALONE, *args, nproc=0)
    assert job.returncode == 0, job.output
    assert (found["world"], found["steps"]) == (1, 3)
    assert "no DDP" in found["reference"]


@pytest.mark.slow
def test_a_script_that_sets_no_seed_starts_from_the_same_bits(tmp_path: Path) -> None:
    job, _ = verified(tmp_path, HOOKS, "unseeded")
    assert job.returncode == 0, job.output


@pytest.mark.slow
def test_a_script_that_begins_anew_in_every_run_is_compared_from_one_start(tmp_path: Path) -> None:
    job, found = verified(tmp_path, HOOKS, "restless")
    assert job.returncode == 0, job.output
    (note,) = found["notes"]
    assert note.startswith("the script begins with other values in every run (random state before")


def test_a_fused_step_under_a_scaler_is_equal(tmp_path: Path) -> None:
    job, found = verified(tmp_path, EAGER, "scaler", nproc=0)
    assert job.returncode == 0, job.output
    assert found["steps"] == 3


@pytest.mark.slow
def test_a_step_that_overflows_under_the_loss_scale_is_skipped(tmp_path: Path) -> None:
    job, found = verified(tmp_path, OVERFLOW, nproc=0)
    assert job.returncode == 0, job.output
    assert found["steps"] == 2
    assert found["notes"] == ["1 step was skipped under the loss scale, as the plan has it"]


@pytest.mark.slow
@pytest.mark.parametrize("idle", [False, True])
def test_sixteen_bits_do_not_hide_how_far_a_step_moves(tmp_path: Path, idle: bool) -> None:
    args = ("idle",) if idle else ()
    job, found = verified(tmp_path, STORED, *args, nproc=0, script=CASES / "stored.py")
    assert job.returncode == int(idle)
    failed = {name for name, row in rows(found).items() if row["failed"]}
    assert failed == ({"parameters"} if idle else set())


def test_a_script_that_is_not_reproducible_is_to_blame_itself(tmp_path: Path) -> None:
    job, found = verified(tmp_path, EAGER, "irreproducible", nproc=0)
    assert job.returncode == 1
    assert found["culprit"]["name"] == "the script"
    assert found["first"]["quantity"] == "inputs"


@pytest.mark.slow
def test_a_script_that_fails_is_no_difference(tmp_path: Path) -> None:
    job, found = verified(tmp_path, EAGER, nproc=0, script=CASES / "no_such_script.py")
    assert (job.returncode, found["outcome"]) == (1, "failed")
    assert "the script as it is written failed" in found["why"]


# fault, plan, ranks, the pass to be named, the quantity that differs first, words of the script
FAULTS = (
    ("swaps_slots", HOOKS, 2, "insert_reductions", "gradients"),
    ("skips_a_bucket", HOOKS, 2, "insert_reductions", "gradients"),
    ("delivers_stale_views", HOOKS, 2, "insert_reductions", "gradients"),
    ("loses_the_broadcast", HOOKS, 2, "insert_reductions", "state"),
    ("draws_at_wrapping", HOOKS, 2, "insert_reductions", "random state before"),
    ("loses_the_wire", WIRE, 2, "compress_wire", "gradients"),
    ("drops_a_gradient", ALONE, 0, "lower_roots", "gradient topology"),
    ("drops_a_gradient", ALONE, 0, "lower_roots", "gradient topology", "compile"),
    ("reorders_dropouts", ALONE, 0, "lower_roots", "outputs"),
    ("draws_twice", ALONE, 0, "lower_roots", "outputs"),
    ("loses_a_mutation", ALONE, 0, "lower_roots", "buffers"),
    ("rounds_the_output", ALONE, 0, "lower_roots", "outputs"),
    ("swaps_ready", GRAPH, 2, "insert_ready", "gradients"),
    ("shifts_the_split_bias", RULE, 0, "steer_fusion", "outputs"),
    ("gives_a_kernel_the_wrong_bias", KERNEL, 0, "substitute_kernels", "outputs"),
    ("casts_a_kept_op", KEPT, 0, "cast_precision", "outputs", "phases"),
    ("returns_a_low_format", KEPT, 0, "cast_precision", "outputs", "phases"),
    ("scales_the_loss_twice", SCALED, 0, "scale_loss", "gradients"),
    ("forgets_to_unscale", SCALED, 0, "scale_loss", "gradients"),
    ("repeats_a_draw", HALF, 0, "recompute_values", "random state"),
    ("leaves_the_padding_in", PADDED, 0, "guard_calls", "outputs", "ragged"),
    ("uses_another_eps", EAGER, 0, "insert_updates", "optimizer settings"),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", FAULTS, ids=lambda case: "-".join((case[0], *case[5:])))
def test_a_wrong_pass_is_found_and_named(tmp_path: Path, case: Any) -> None:
    fault, plan, nproc, name, quantity, *words = case
    culprit, first = faulty(tmp_path, fault, plan, nproc, *words)
    assert (culprit["name"], first["quantity"]) == (name, quantity)
    if name in ("steer_fusion", "substitute_kernels"):
        assert culprit["clause"] == "fuse.bias_gelu"
    if name == "substitute_kernels":
        assert (culprit["op"], culprit["module"]) != ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "words"),
    [(KEPT, ("phases",)), (SCALED, ()), (HALF, ()), (PADDED, ("ragged",))],
    ids=["precision", "loss scale", "recompute", "padding"],
)
def test_without_a_fault_these_plans_are_equal(
    tmp_path: Path, plan: str, words: tuple[str, ...]
) -> None:
    job, _ = verified(tmp_path, plan, *words, nproc=0)
    assert job.returncode == 0, job.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"),
    [("digits", ()), ("gpt_bytes", ("--layers", "2", "--dim", "64", "--megabytes", "1"))],
)
def test_the_examples_are_equal_to_their_plain_runs(
    tmp_path: Path, name: str, args: tuple[str, ...]
) -> None:
    plan = (PLANS / name / f"{name}.sgplan").read_text()
    job, found = verified(tmp_path, plan, *args, script=PLANS / name / "train.py")
    assert (job.returncode, found["outcome"]) == (0, "equal"), job.output
    assert rows(found)["outputs"]["largest"] <= 1e-6


def test_the_function_leaves_other_children_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.sgplan").write_text(EAGER)
    stays = subprocess.Popen(["sleep", "300"])
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    try:
        sgplan.verify("plan.sgplan", [sys.executable, "-c", "print('no model')"])
        assert ended.wait(timeout=60) == 7
        assert stays.poll() is None
    finally:
        stays.kill()
        stays.wait()


def test_the_function_raises_what_the_command_would_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.sgplan").write_text("sgplan 1\nupdate { optimizer = fast }\n")
    with pytest.raises(Refused) as refused:
        sgplan.verify("plan.sgplan", [sys.executable])
    assert refused.value.diagnostics[0].code == "SG0205"
    with pytest.raises(Failure, match="cannot be read"):
        sgplan.verify("no.sgplan", [sys.executable])


def test_the_function_for_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.sgplan").write_text(EAGER)
    command = [sys.executable, str(SCRIPT)]
    found = sgplan.verify("plan.sgplan", command, run_dir="run", environ={"OMP_NUM_THREADS": "1"})
    found.assert_equal()
    assert found.ok
    assert found.table.splitlines()[-1] == "equal within what the plan declares"
    assert found.culprit is None
    assert (tmp_path / "run" / "planned" / "report.json").exists()
