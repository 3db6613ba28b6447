"""Roots that a capture can lose: classes of torch.nn, compiles in any order, late hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sgplan.interpreter import events
from tests.gloo.harness import Job

from .kit import INDUCTOR, close, plain, planned, result

pytestmark = pytest.mark.gloo

# Case -> the class that its root has in the events, and the engine that must run it.
CLASSES = {
    "sequential": "Sequential",
    "linear": "Linear",
    "transformer_encoder": "TransformerEncoder",
    "compile_then_ddp": "CompiledFirst",
    "compile_again_after_ddp": "CompiledAgain",
    "forward_compiled_after_ddp": "CompiledForward",
    "hook_added_late": "HookedLate",
    "other_method": "Encoded",
    "opaque_forward": "Opaque",
}


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return plain("capture.py", folder=tmp_path_factory.mktemp("plain"), nproc=1)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("planned")
    return planned("capture.py", folder=folder, nproc=1, plan=INDUCTOR, timeout=240)


def _of_root(job: Job, kind: type, cls: str) -> list[Any]:
    """Events of one kind that name the root of this class."""
    names = {e.root for e in job.of(events.RootFound) if e.cls.endswith(f":{cls}")}
    assert names, f"no root of class {cls}"
    return [e for e in job.of(kind) if e.root in names]


@pytest.mark.parametrize("case", CLASSES)
def test_it_trains_as_the_plain_script(stock: Job, job: Job, case: str) -> None:
    close(result(stock, case), result(job, case), 1e-5)


@pytest.mark.parametrize("case", [case for case in CLASSES if case != "opaque_forward"])
def test_a_forward_and_a_backward_graph_are_captured(job: Job, case: str) -> None:
    graphs = _of_root(job, events.GraphCaptured, CLASSES[case])
    variants = 2 if case == "hook_added_late" else 1
    directions = [graph.direction for graph in graphs]
    assert sorted(directions) == ["backward"] * variants + ["forward"] * variants


def test_a_hook_added_after_the_first_call_fires(stock: Job, job: Job) -> None:
    assert result(job, "hook_added_late_calls") == result(stock, "hook_added_late_calls")
    assert result(job, "hook_added_late_calls")["calls"] == [1, 2]


def test_another_method_past_the_wrapper_makes_the_gate_choose_hooks(job: Job) -> None:
    fallbacks = _of_root(job, events.FallbackTaken, CLASSES["other_method"])
    assert any("hooks" in fallback.what for fallback in fallbacks)


def test_an_opaque_forward_is_listed_as_trained_without_a_captured_call(job: Job) -> None:
    missed = [event.where + event.why for event in job.of(events.CaptureMissed)]
    names = {e.root for e in job.of(events.RootFound) if e.cls.endswith(":Opaque")}
    assert any(name in text for name in names for text in missed)


def test_compiled_twice_by_the_script_is_compiled_once(job: Job) -> None:
    for cls in ("CompiledFirst", "CompiledAgain", "CompiledForward"):
        regions = [e for e in job.of(events.CompileFinished) if e.region.startswith(cls)]
        assert len(regions) <= 1, regions


def test_the_working_directory_holds_only_what_the_script_wrote(job: Job) -> None:
    kept = {"plan.sgplan", "run", "stdout", "stderr"}
    foreign = [p.name for p in Path(job.folder).iterdir() if p.name not in kept]
    assert all(name.startswith("result-") for name in foreign), foreign
