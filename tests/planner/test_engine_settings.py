from __future__ import annotations

from dataclasses import replace

import pytest

from sgplan.grammar.plan import Plan
from sgplan.planner.engine_settings import device_problems, inductor_settings

from .build import plan


def on(device: str, body: str) -> Plan:
    return replace(plan(f"capture {{ {body} }}"), device=device)


@pytest.mark.parametrize(
    ("body", "settings"),
    [
        ("graph = prefer", {}),
        ("autotune = on", {"max_autotune": True}),
        ("autotune = max", {"max_autotune": True, "coordinate_descent_tuning": True}),
        ("cuda_graphs = prefer", {"triton.cudagraphs": True}),
        ("rounding = as_eager", {"emulate_precision_casts": True}),
        ("random = exact", {"fallback_random": True, "reorder_for_peak_memory": False}),
    ],
)
def test_what_inductor_is_told(body: str, settings: dict[str, object]) -> None:
    assert inductor_settings(on("cuda", body).capture_of(None), "cuda") == settings


def test_a_cpu_is_not_asked_for_cuda_graphs() -> None:
    assert inductor_settings(on("cpu", "cuda_graphs = prefer").capture_of(None), "cpu") == {}


@pytest.mark.parametrize(("wish", "severity"), [("prefer", "note"), ("required", "error")])
def test_a_device_without_cuda_graphs_is_said(wish: str, severity: str) -> None:
    (found,) = device_problems(on("cpu", f"cuda_graphs = {wish}"))
    assert (found.code, found.severity) == ("SG0513", severity)
    assert found.primary is not None
    assert device_problems(on("cuda", f"cuda_graphs = {wish}")) == []
