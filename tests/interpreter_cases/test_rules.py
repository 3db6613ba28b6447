"""Fusion rules and custom operators on plain scripts of two ranks, from the plan to the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import library

from sgplan.interpreter import events
from tests.gloo.harness import Job, run_job

from .kit import CASES, close, plain, planned, result, results

pytestmark = pytest.mark.gloo

GPT = """sgplan 1
fuse "bias_gelu" { match = bias -> aten.gelu  in = "blocks.*"  expect = %d }
fuse "norm_one"  { match = norm  expect = 4 }
separate "skip"  { match = aten.add -> norm  in = "blocks.*"  on_miss = warn }
"""
RESNET = """sgplan 1
fuse "bn_relu" { match = norm -> aten.relu  in = "layers.*"  expect = 2  on_miss = warn }
fuse "stem"    { match = bias -> aten.relu  expect = 1 }
separate "add" { match = aten.add -> aten.relu  expect = 2 }
"""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return plain("ruled.py", "gpt", "resnet", "b096", folder=tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return planned("ruled.py", "gpt", folder=tmp_path_factory.mktemp("gpt"), plan=GPT % 3)


def kernels(job: Job) -> dict[str, Any]:
    """`sgplan show --kernels --json` of a run."""
    sgplan = str(Path(sys.executable).with_name("sgplan"))
    command = [sgplan, "show", str(job.run), "--kernels", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def outcomes(found: dict[str, Any]) -> dict[str, list[str]]:
    return {rule["rule"]: [site["outcome"] for site in rule["sites"]] for rule in found["rules"]}


def test_rules_on_a_gpt_are_proved_and_numbers_stay(stock: Job, gpt: Job) -> None:
    found = outcomes(kernels(gpt))
    assert found["fuse.bias_gelu"] == ["fused"] * 3
    assert found["fuse.norm_one"] == ["fused"] * 4
    for ours, theirs in zip(results(gpt, "gpt"), results(stock, "gpt"), strict=True):
        close(theirs, ours, 1e-5)


@pytest.mark.slow
def test_a_warm_run_reports_the_same(gpt: Job, tmp_path: Path) -> None:
    again = planned("ruled.py", "gpt", folder=tmp_path, plan=GPT % 3)
    assert {e.cache for e in again.of(events.CompileFinished)} == {"hit"}
    assert kernels(again) == kernels(gpt)


def test_one_expected_site_too_few_ends_the_run_and_is_named(gpt: Job, tmp_path: Path) -> None:
    job = run_job(CASES / "ruled.py", "gpt", folder=tmp_path, plan=GPT % 2, timeout=240)
    assert job.returncode == 1
    assert not job.orphans
    assert "SG0607" in job.stderr
    assert "`fuse.bias_gelu` has 3 sites where 2 are expected" in job.stderr
    assert "blocks.2" in job.stderr
    assert not job.of(events.StepFinished)


@pytest.mark.slow
def test_rules_on_a_resnet_are_proved_and_numbers_stay(stock: Job, tmp_path: Path) -> None:
    job = planned("ruled.py", "resnet", folder=tmp_path, plan=RESNET)
    found = outcomes(kernels(job))
    assert found["fuse.bn_relu"] == ["missed"] * 2  # its statistics are a kernel of their own
    assert found["fuse.stem"] == ["fused"]
    assert found["separate.add"] == ["separate"] * 2
    for ours, theirs in zip(results(job, "resnet"), results(stock, "resnet"), strict=True):
        close(theirs, ours, 1e-5)


def test_a_rule_the_compiler_does_not_follow_refuses_the_run(tmp_path: Path) -> None:
    plan = 'sgplan 1\nfuse "mm" { match = matmul -> aten.gelu }\n'
    job = run_job(CASES / "ruled.py", "gpt", folder=tmp_path, plan=plan, timeout=240)
    assert job.returncode == 1
    assert "SG0606" in job.stderr
    assert "is a call of a library" in job.stderr
    assert not job.of(events.StepFinished)


def test_b096_an_op_without_a_fake_is_named_and_runs(stock: Job, tmp_path: Path) -> None:
    plan = "sgplan 1\ncapture { engine = inductor }\n"
    job = planned("ruled.py", "b096", folder=tmp_path, plan=plan)
    close(result(stock, "b096"), result(job, "b096"), 1e-5)
    reasons = [event.why for event in job.of(events.CaptureMissed)]
    cure = f'@{library.__name__}.register_fake("caselib::bare")'
    assert any(cure in reason for reason in reasons)


def test_b098_an_op_with_a_wrong_fake_is_refused(tmp_path: Path) -> None:
    plan = 'sgplan 1\noperator "turned" { op = caselib::turned }\n'
    job = run_job(CASES / "ruled.py", "b098", folder=tmp_path, plan=plan, timeout=240)
    assert job.returncode == 1
    assert not job.orphans
    assert "the fake of `caselib::turned` is wrong: it promises strides" in job.stderr
    assert not job.of(events.StepFinished)


KERNELS = """sgplan 1
fuse "bias_gelu" { match = bias -> aten.gelu  with = triton("sgplan:bias_gelu")  expect = 3 }
fuse "add_norm"  { match = aten.add -> norm   with = triton("sgplan:add_layer_norm") }
"""


@pytest.mark.slow
def test_kernels_stand_for_ops_cold_and_warm(stock: Job, tmp_path: Path) -> None:
    cold = planned("ruled.py", "gpt", folder=tmp_path / "cold", plan=KERNELS)
    warm = planned("ruled.py", "gpt", folder=tmp_path / "warm", plan=KERNELS)
    assert outcomes(kernels(cold)) == {
        "fuse.bias_gelu": ["replaced"] * 3,
        "fuse.add_norm": ["replaced"] * 3,
    }
    assert {e.cache for e in warm.of(events.CompileFinished)} == {"hit"}
    assert kernels(warm) == kernels(cold)
    for job in (cold, warm):
        for ours, theirs in zip(results(job, "gpt"), results(stock, "gpt"), strict=True):
            close(theirs, ours, 1e-5)


def test_a_wrong_kernel_refuses_the_run_before_the_first_step(tmp_path: Path) -> None:
    kernel = CASES / "kernels" / "faulty.py"
    plan = f"""sgplan 1
fuse "stem" {{
  match = aten.add -> aten.relu
  with  = triton("{kernel}:off_by_one", reference = "{kernel}:plain")
}}
"""
    job = run_job(CASES / "ruled.py", "resnet", folder=tmp_path, plan=plan, timeout=240)
    assert job.returncode == 1
    assert not job.orphans
    assert "SG0614" in job.stderr
    assert "differs from its reference by" in job.stderr
    assert not job.of(events.StepFinished)
    assert not job.of(events.CompileFinished)
