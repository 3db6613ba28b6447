"""Training under a plan equals the plain script: bitwise, or for a stated reason within 1e-6.

The representative part compares every case on the eager engine and some on compiled graphs; the
whole matrix (`slow`) adds the remaining ones, float64, and four ranks.
"""

from __future__ import annotations

import pytest
import torch

from .compare import Tensors, differences, worst_against_largest
from .names import FURTHER, REQUIRED
from .ways import ALL, PLANNED, WAYS, Key, Runs, reduction_counts

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(1800)]

TOLERANCE = 1e-6
# A sum of four has an order. One float32 parameter in a float64 run rounds for the whole model.
FOUR_RANKS = {torch.float64: 1e-12, torch.float32: TOLERANCE}
# (way, case) -> why numbers may differ by rounding. Nothing else may.
PAST_THE_WRAPPER = "a call past the wrapper is captured too; in the plain run it is eager"
EAGER_EVALUATION = "the script's evaluation stays eager; the reference compiles it"
STOCK_IS_EAGER = "stock DDP takes it, on the script's own eager engine; the reference compiles"
REASONS: dict[tuple[str, str], str] = {
    ("as written, in graph", "evaluates"): PAST_THE_WRAPPER,
    ("compiled, by = hooks", "evaluates"): PAST_THE_WRAPPER,
    ("engine = inductor", "evaluates"): EAGER_EVALUATION,
    ("engine = inductor", "static_graph"): STOCK_IS_EAGER,
}

# Cases whose compiled graphs stand for the rest in a quick run.
QUICK = ("tied_gpt", "resnet_batchnorm", "no_sync", "find_unused", "called_twice", "two_models")
COMPILED = tuple(way for way in PLANNED if WAYS[way].reference == "compiled")

# Who starts the reductions where graphs may hold them; an empty set means stock DDP does it all.
IN_GRAPH, HOOKS, BOTH, STOCK = {"in_graph"}, {"hook"}, {"in_graph", "hook"}, set[str]()
STARTED_BY: dict[str, set[str]] = {
    "no_sync": HOOKS,  # `.grad` holds the micro-steps' sum
    "sync_flag": HOOKS,
    "find_unused": HOOKS,
    "called_twice": HOOKS,  # two in-edges at every parameter
    "outside_penalty": HOOKS,
    "zero_grad_keep": BOTH,  # `.grad` is missing in the first step only
    "parameter_hooks": HOOKS,
    "static_graph": STOCK,
    "communication_hook": STOCK,
}


def _cases(way: str) -> list[object]:
    """Every case; those that need a further compile belong to the whole matrix."""
    quick = ALL if WAYS[way].reference == "eager" else QUICK
    return [
        pytest.param(way, case, marks=() if case in quick else pytest.mark.slow, id=f"{way}-{case}")
        for case in ALL
    ]


def _key(way: str, case: str, world: int = 2, dtype: str = "float32") -> Key:
    """The job that holds this case: quick cases share one, so that a quick run compiles few."""
    if "compiled" not in (way, WAYS[way].reference) or (world, dtype) != (2, "float32"):
        return Key(way, world, dtype)
    return Key(way, cases=QUICK if case in QUICK else tuple(c for c in ALL if c not in QUICK))


def _reference(way: str) -> str:
    reference = WAYS[way].reference
    assert reference is not None
    return reference


@pytest.mark.parametrize(("way", "case"), [p for way in PLANNED for p in _cases(way)])
def test_weights_and_first_gradients_equal_the_plain_run(runs: Runs, way: str, case: str) -> None:
    plain = dict(runs.results(_key(_reference(way), case), case))
    for rank, planned in runs.results(_key(way, case), case):
        for kind in ("gradients", "weights"):
            _check_equal(way, case, plain[rank][kind], planned[kind])
        losses = [{"losses": torch.tensor(result["losses"])} for result in (plain[rank], planned)]
        _check_equal(way, case, *losses)


def _check_equal(way: str, case: str, plain: Tensors, planned: Tensors) -> None:
    found = differences(plain, planned)
    if not found:
        return
    reason = REASONS.get((way, case))
    assert reason is not None, "\n".join(map(str, found[:8]))
    assert found[0].relative <= TOLERANCE, str(found[0])
    print(f"{way}, {case}: {found[0]}, because {reason}")


@pytest.mark.parametrize(("way", "case"), [p for way in COMPILED[:2] for p in _cases(way)])
def test_reductions_start_in_the_graph_where_the_gate_allows(
    runs: Runs, way: str, case: str
) -> None:
    counts = reduction_counts(runs.events(_key(way, case), case, rank=0))
    assert set(counts) == STARTED_BY.get(case, IN_GRAPH)


@pytest.mark.parametrize(
    ("way", "case"),
    [p for way in ("empty plan on eager", "compiled, by = hooks") for p in _cases(way)],
)
def test_hooks_start_every_reduction_when_no_graph_does(runs: Runs, way: str, case: str) -> None:
    counts = reduction_counts(runs.events(_key(way, case), case, rank=0))
    assert set(counts) == (STOCK if STARTED_BY.get(case) == STOCK else HOOKS)


@pytest.mark.parametrize("way", PLANNED)
def test_the_job_ends_well_and_leaves_no_process(runs: Runs, way: str) -> None:
    runs.job(_key(way, QUICK[0])).ok()


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("way", PLANNED)
def test_float64_on_two_ranks_is_bitwise_equal(runs: Runs, way: str, case: str) -> None:
    plain = dict(runs.results(Key(_reference(way), dtype="float64"), case))
    for rank, planned in runs.results(Key(way, dtype="float64"), case):
        _check_equal(way, case, plain[rank]["weights"], planned["weights"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("way", PLANNED)
def test_float64_on_four_ranks_is_within_1e_12(runs: Runs, way: str, case: str) -> None:
    plain = dict(runs.results(Key(_reference(way), 4, "float64"), case))
    for rank, planned in runs.results(Key(way, 4, "float64"), case):
        weights = planned["weights"]
        limit = max(FOUR_RANKS.get(tensor.dtype, 0.0) for tensor in weights.values())
        for found in differences(plain[rank]["weights"], weights):
            assert found.relative <= limit, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("way", PLANNED)
def test_first_gradients_on_four_ranks_are_within_1e_6_of_the_largest(
    runs: Runs, way: str, case: str
) -> None:
    plain = dict(runs.results(Key(_reference(way), 4), case))
    for rank, planned in runs.results(Key(way, 4), case):
        assert worst_against_largest(plain[rank]["gradients"], planned["gradients"]) <= 1e-6


def test_every_case_is_named_once() -> None:
    assert len(set(ALL)) == len(ALL) == len(REQUIRED) + len(FURTHER)
    assert set(STARTED_BY) <= set(ALL)
