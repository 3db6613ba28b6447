"""What `capture` asks of Inductor in its words, and what the device of the run cannot follow.

`rounding = as_eager` keeps the casts that fusion drops: eager rounds every low-precision result,
a fused kernel only what it stores. `random = exact` leaves random ops to eager's own generator, in
the script's order; the scheduler's reordering for memory would let a later one draw first.
"""

from __future__ import annotations

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Capture, Plan

_AUTOTUNE: dict[str, dict[str, object]] = {
    "off": {},
    "on": {"max_autotune": True},
    "max": {"max_autotune": True, "coordinate_descent_tuning": True},
}
_ROUNDING: dict[str, dict[str, object]] = {
    "default": {},
    "as_eager": {"emulate_precision_casts": True},
}
_RANDOM: dict[str, dict[str, object]] = {
    "default": {},
    "exact": {"fallback_random": True, "reorder_for_peak_memory": False},
}


def inductor_settings(capture: Capture, device: str) -> dict[str, object]:
    """Inductor's settings under a `capture` block; empty where it asks for nothing."""
    graphs = capture.cuda_graphs != "off" and device == "cuda"
    return (
        _AUTOTUNE[capture.autotune]
        | ({"triton.cudagraphs": True} if graphs else {})
        | _ROUNDING[capture.rounding]
        | _RANDOM[capture.random]
    )


def device_problems(plan: Plan) -> list[Diagnostic]:
    """SG0513 for every setting that the device does not have: an error where it is required."""
    return [
        _no_cuda_graphs(capture, plan.device)
        for capture in plan.captures
        if capture.cuda_graphs != "off" and plan.device != "cuda"
    ]


def _no_cuda_graphs(capture: Capture, device: str) -> Diagnostic:
    span = capture.origin("cuda_graphs")
    required = capture.cuda_graphs == "required"
    return Diagnostic(
        "SG0513",
        f"`cuda_graphs = {capture.cuda_graphs}` on device `{device}`, which has none",
        None if span is None else Label(span),
        help="write `cuda_graphs = prefer`" if required else "",
        severity="error" if required else "note",
    )
