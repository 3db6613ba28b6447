"""Two recorded runs side by side: what counts as equal, and which difference comes first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sgplan.interpreter import moments
from sgplan.interpreter.moments import Moment, Tensors
from sgplan.proof.compare import compare, same_bits
from sgplan.proof.findings import Comparison
from sgplan.proof.tolerance import Tolerance

LOOSE = Tolerance(1e-6, 1e-5, 1e-5)


def run(folder: Path, *recorded: Moment, rank: int = 0) -> Path:
    for number, moment in enumerate(recorded):
        moments.write(moments.folder_of(folder, rank), number, moment, torch.save)
    return folder


def call(step: int = 0, **values: Any) -> Moment:
    given: dict[str, Tensors] = {n: {"0": torch.tensor(value)} for n, value in values.items()}
    return Moment("call", "model", step, given, {"random state": {"torch": "a"}})


def backward(**gradients: Any) -> Moment:
    found = {n: None if g is None else torch.tensor(g) for n, g in gradients.items()}
    names = [name for name, gradient in gradients.items() if gradient is not None]
    return Moment("backward", "", 0, {"gradients": found}, {"gradient topology": names})


def compared(folder: Path, one: Moment, other: Moment, allowed: Tolerance) -> Comparison:
    return compare(run(folder / "a", one), run(folder / "b", other), [allowed], 1)


def test_equal_bits_are_equal_and_counted(tmp_path: Path) -> None:
    found = compared(tmp_path, call(outputs=[1.0, 2.0]), call(outputs=[1.0, 2.0]), Tolerance())
    assert found.first is None
    assert [(row.quantity, row.compared, row.bitwise) for row in found.rows] == [
        ("outputs", 1, 1),
        ("random state", 1, 1),
    ]


@pytest.mark.parametrize(("off", "ok"), [(1e-7, True), (4e-6, False)])
def test_a_difference_is_relative_to_the_largest_value(
    tmp_path: Path, off: float, ok: bool
) -> None:
    one, other = call(outputs=[0.0, 2.0]), call(outputs=[2 * off, 2.0])
    found = compared(tmp_path, one, other, LOOSE)
    assert (found.first is None) is ok
    assert found.rows[0].largest == pytest.approx(off, rel=1e-3)
    if found.first is not None:
        assert str(found.first.place) == "rank 0, step 1, call model, 0"


def test_without_a_tolerance_the_last_bit_counts(tmp_path: Path) -> None:
    found = compared(tmp_path, call(outputs=1.0), call(outputs=1.0 + 2**-23), Tolerance())
    assert found.first is not None
    assert found.first.allowed == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_in_one_run_only_is_a_difference(
    tmp_path: Path, value: float
) -> None:
    found = compared(tmp_path, call(outputs=[1.0, 2.0]), call(outputs=[1.0, value]), LOOSE)
    assert found.first is not None
    assert found.first.relative == math.inf


@pytest.mark.parametrize("value", [1e6, math.nan, math.inf, 1e-3])
def test_a_value_where_the_plain_run_has_only_zeros_is_a_difference(
    tmp_path: Path, value: float
) -> None:
    one, other = backward(w=[1.0], b=[0.0, 0.0]), backward(w=[1.0], b=[0.0, value])
    found = compared(tmp_path, one, other, LOOSE)
    assert found.first is not None
    assert (found.first.quantity, found.first.place.tensor) == ("gradients", "b")


def test_rounding_where_the_plain_run_has_only_zeros_is_allowed(tmp_path: Path) -> None:
    assert compared(tmp_path, backward(w=[1.0], b=[0.0]), backward(w=[1.0], b=[1e-8]), LOOSE).ok


EVERY_KIND = [
    torch.bool, torch.uint8, torch.uint16, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.bfloat16, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", EVERY_KIND)
def test_tensors_of_every_dtype_are_compared(tmp_path: Path, dtype: torch.dtype) -> None:
    one, other = (torch.tensor(values).to(dtype) for values in ([0, 1, 1], [0, 0, 1]))
    moments_ = [Moment("call", "model", 0, {"inputs": {"x": value}}) for value in (one, other)]
    assert compared(tmp_path / "same", moments_[0], moments_[0], LOOSE).first is None
    found = compared(tmp_path / "other", moments_[0], moments_[1], LOOSE)
    assert found.first is not None
    assert found.first.relative == 1.0


def test_another_shape_is_said_in_words(tmp_path: Path) -> None:
    found = compared(tmp_path, call(outputs=[1.0]), call(outputs=[1.0, 1.0]), LOOSE)
    assert found.first is not None
    assert found.first.text == "float32 [1], in the planned run float32 [2]"


def test_a_parameter_without_its_gradient_breaks_the_topology(tmp_path: Path) -> None:
    found = compared(tmp_path, backward(w=[1.0], b=[1.0]), backward(w=[1.0], b=None), LOOSE)
    assert found.first is not None
    assert (found.first.quantity, found.first.place.tensor) == ("gradient topology", "b")


def test_a_gradient_that_is_zero_but_for_rounding_may_round_otherwise(tmp_path: Path) -> None:
    found = compared(tmp_path, backward(w=[1.0], b=[1e-9]), backward(w=[1.0], b=[-2e-9]), LOOSE)
    assert found.ok


def test_parameters_are_judged_by_how_far_they_moved(tmp_path: Path) -> None:
    def update(after: float) -> Moment:
        values: dict[str, Tensors] = {
            "before": {"w": torch.tensor(1.0)},
            "parameters": {"w": torch.tensor(after)},
        }
        return Moment("update", "AdamW", 0, values)

    found = compared(tmp_path, update(1.001), update(1.00101), LOOSE)
    assert found.first is not None  # a hundredth of the step, although 1e-5 of the parameter
    assert found.first.relative == pytest.approx(0.01, rel=0.05)


def test_a_row_shows_a_value_that_failed_and_no_larger_one_that_may_differ(tmp_path: Path) -> None:
    def update(wide: float, low: float) -> Moment:
        values: dict[str, Tensors] = {
            "before": {"w": torch.tensor(1.0), "low": torch.tensor(8.0, dtype=LOW)},
            "parameters": {"w": torch.tensor(wide), "low": torch.tensor(low, dtype=LOW)},
        }
        return Moment("update", "SGD", 0, values)

    found = compared(tmp_path, update(1.1, 8.0625), update(1.11, 8.1875), Tolerance(update=1e-5))
    (row,) = found.rows
    assert (row.compared, row.failed) == (2, 1)
    assert row.at is not None
    assert row.at.tensor == "w"
    assert row.largest == pytest.approx(0.1, rel=0.01)
    assert row.largest > row.allowed


def test_what_a_run_begins_with_is_compared(tmp_path: Path) -> None:
    """A broadcast that is lost, or a draw at wrapping, is seen although the state is taken over."""
    one, other = run(tmp_path / "a", call(state=1.0)), run(tmp_path / "b", call(state=2.0))
    found = compare(one, other, [LOOSE], 1)
    assert found.first is not None
    assert found.start == [(0, "state", "0")]
    # A second plain run began with other values as well: then it is not the plan.
    assert compare(one, other, [LOOSE], 1, exempt=found.start).first is None
    later = compared(tmp_path / "1", call(1, state=1.0), call(1, state=2.0), LOOSE)
    assert later.first is not None
    assert not later.start


def updated(step: int, moved: list[str] | None = None) -> Moment:
    values: dict[str, Tensors] = {"parameters": {"w": torch.ones(1)}}
    return Moment("update", "AdamW", step, values, {} if moved is None else {"skipped": moved})


def test_a_skipped_update_is_no_difference_and_no_step(tmp_path: Path) -> None:
    overflown = backward(w=[math.inf])
    overflown.facts["overflow"] = True
    one = run(tmp_path / "a", backward(w=[1.0]), updated(0), updated(1))
    found = compare(one, run(tmp_path / "b", overflown, updated(0, []), updated(1)), [LOOSE], 1)
    assert (found.ok, found.steps, found.skipped) == (True, 1, 1)
    only = compare(one, run(tmp_path / "c", overflown, updated(0, []), updated(1, [])), [LOOSE], 1)
    assert not only.ok
    moved = compare(one, run(tmp_path / "d", overflown, updated(0, ["w"]), updated(1)), [LOOSE], 1)
    assert moved.first is not None
    assert (moved.first.quantity, moved.first.place.tensor) == ("skipped update", "w")


def test_what_could_not_be_recorded_is_noted_once(tmp_path: Path) -> None:
    one, other = call(outputs=1.0), call(outputs=1.0)
    one.notes = other.notes = ["output `x` is not compared"]
    assert compared(tmp_path, one, other, LOOSE).notes == ["output `x` is not compared"]


def test_a_run_that_takes_another_path_is_different(tmp_path: Path) -> None:
    longer = run(tmp_path / "a", call(outputs=1.0), backward(w=[1.0]))
    found = compare(longer, run(tmp_path / "b", call(outputs=1.0)), [LOOSE], 1)
    assert found.first is not None
    assert (found.first.quantity, found.first.text) == (
        "path",
        "the planned run has no such moment",
    )


def test_the_earliest_difference_is_the_first_one(tmp_path: Path) -> None:
    one = run(tmp_path / "a", call(outputs=1.0, buffers=1.0), backward(w=[1.0]))
    other = run(tmp_path / "b", call(outputs=1.0, buffers=2.0), backward(w=[2.0]))
    found = compare(one, other, [LOOSE], 1)
    assert found.first is not None
    assert found.first.quantity == "buffers"
    assert {row.quantity for row in found.rows if row.failed} == {"buffers", "gradients"}


def test_runs_without_moments_prove_nothing(tmp_path: Path) -> None:
    found = compare(tmp_path / "a", tmp_path / "b", [LOOSE], 1)
    assert not found.ok
    assert found.silent == [0]


def test_a_rank_that_recorded_nothing_in_either_run_is_missed(tmp_path: Path) -> None:
    one, other = (run(tmp_path / name, backward(w=[1.0])) for name in "ab")
    assert compare(one, other, [LOOSE], 1).ok
    found = compare(one, other, [LOOSE], 2)
    assert (found.ok, found.silent, found.steps) == (False, [1], 0)


def test_a_call_alone_is_no_step(tmp_path: Path) -> None:
    begun = [call(outputs=1.0), backward(w=[1.0]), call(1, outputs=1.0)]
    one, other = (run(tmp_path / name, *begun) for name in "ab")
    assert compare(one, other, [LOOSE], 1).steps == 1


def test_nan_in_both_runs_is_counted(tmp_path: Path) -> None:
    nan = backward(w=[math.nan, 1.0], b=[1.0])
    (row,) = (r for r in compared(tmp_path, nan, nan, LOOSE).rows if r.quantity == "gradients")
    assert (row.nans, row.verdict) == (1, "equal")
    assert str(row.first_nan) == "rank 0, step 1, backward, w"


def test_what_only_the_planned_run_has_is_a_difference(tmp_path: Path) -> None:
    one, other = call(inputs=1.0), call(inputs=1.0, outputs=1.0)
    found = compared(tmp_path, one, other, LOOSE)
    assert found.first is not None
    assert (found.first.quantity, found.first.text) == ("outputs", "the plain run has none")


def test_every_step_has_its_own_tolerance(tmp_path: Path) -> None:
    one, other = (
        run(tmp_path / name, *(call(step, outputs=value) for step in range(3)))
        for name, value in (("a", 1.0), ("b", 1.01))
    )
    wide = Tolerance(0.03, 0.06)
    assert compare(one, other, [wide], 1).first is None
    found = compare(one, other, [wide, LOOSE, wide], 1)
    assert found.first is not None
    assert found.first.place.step == 2


LOW = torch.bfloat16


def of(**values: torch.Tensor | None) -> Moment:
    return Moment("backward", "", 0, {"gradients": dict(values)})


def test_sums_of_ranks_round_in_the_format_of_the_gradient(tmp_path: Path) -> None:
    allowed = Tolerance(gradient_eps=4)
    low = torch.tensor([1.0], dtype=LOW)
    assert compared(tmp_path / "1", of(w=low), of(w=low + 2**-7), allowed).ok
    assert not compared(tmp_path / "2", of(w=low), of(w=low + 5 * 2**-7), allowed).ok
    wide = torch.tensor([1.0])
    assert not compared(tmp_path / "3", of(w=wide), of(w=wide + 2**-7), allowed).ok


def update(
    before: float, plain: float, planned: torch.Tensor, dtype: torch.dtype
) -> tuple[Moment, Moment]:
    one, other = (
        Moment(
            "update",
            "AdamW",
            0,
            {"before": {"w": torch.tensor([before, 8.0], dtype=dtype)}, "parameters": {"w": after}},
        )
        for after in (torch.tensor([plain, 8.0], dtype=dtype), planned)
    )
    return one, other


def test_a_parameter_rounds_in_its_own_format_and_at_its_own_size(tmp_path: Path) -> None:
    allowed = Tolerance(update=1e-5)
    near = torch.tensor([1.0 - 2**-7, 8.0], dtype=LOW)
    assert compared(tmp_path / "1", *update(1.0, 1 - 2**-8, near, LOW), allowed).ok
    # As far as the larger element may be off, but not this one.
    far = torch.tensor([1.0 - 0.125, 8.0], dtype=LOW)
    assert not compared(tmp_path / "2", *update(1.0, 1 - 2**-8, far, LOW), allowed).ok
    wide = torch.tensor([1.0 - 2**-7, 8.0])
    assert not compared(tmp_path / "3", *update(1.0, 1 - 2**-8, wide, torch.float32), allowed).ok


def test_stored_parameters_are_compared_in_the_format_of_the_script(tmp_path: Path) -> None:
    rounded = torch.tensor([1.0, 8.0], dtype=LOW)
    pair = update(1.0, 1 - 2**-10, rounded, torch.float32)
    stored = Tolerance(0.03, 0.06, 1e-5, stored=True)
    assert compared(tmp_path / "1", *pair, stored).ok
    assert not compared(tmp_path / "2", *pair, Tolerance(0.03, 0.06, 1e-5)).ok
    gradients = of(w=torch.tensor([1.0, 3.0])), of(w=torch.tensor([1.0, 3.0], dtype=LOW))
    found = compared(tmp_path / "3", *gradients, stored)
    assert found.ok
    assert found.rows[0].verdict == "within"
    wrong = of(w=torch.tensor([1.0, 3.0])), of(w=torch.tensor([1.0, 4.0], dtype=LOW))
    assert not compared(tmp_path / "4", *wrong, stored).ok


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (1.01, True), (1.1, False), (0.0, False)])
def test_a_step_of_a_rounded_gradient_is_judged_by_how_far_it_moved(
    tmp_path: Path, factor: float, ok: bool
) -> None:
    def update(moved: float, dtype: torch.dtype) -> Moment:
        values: dict[str, Tensors] = {
            "gradients at the update": {"w": torch.tensor(1.0, dtype=dtype)},
            "before": {"w": torch.tensor(1.0)},
            "parameters": {"w": torch.tensor(1.0 - moved)},
            "optimizer state": {"w.exp_avg": torch.tensor(moved)},
        }
        return Moment("update", "SGD", 0, values)

    pair = update(1e-3, torch.float32), update(factor * 1e-3, LOW)
    found = compared(tmp_path, *pair, Tolerance(0.03, 0.06, 1e-5, stored=True))
    assert found.ok is ok
    assert {row.quantity for row in found.rows if row.failed} == (
        set() if ok else {"parameters", "optimizer state"}
    )
    assert factor == 1.0 or not compared(tmp_path, *pair, Tolerance(0.03, 0.06, 1e-5)).ok


def test_a_mean_that_is_zero_but_for_rounding_is_judged_by_its_module(tmp_path: Path) -> None:
    def buffers(mean: float, variance: float = 1.0) -> Moment:
        values: Tensors = {
            "norm.running_mean": torch.tensor([mean]),
            "norm.running_var": torch.tensor([variance]),
            "norm.num_batches_tracked": torch.tensor(10**9),
            "mask.masked": torch.tensor([-1e9]),
        }
        return Moment("call", "model", 0, {"buffers": values})

    assert compared(tmp_path / "1", buffers(1e-8), buffers(-3e-8), LOOSE).first is None
    assert compared(tmp_path / "2", buffers(1e-8), buffers(1e-5), LOOSE).first
    assert compared(tmp_path / "3", buffers(1e-8), buffers(-3e-8), Tolerance()).first


def test_a_loss_near_zero_is_judged_by_the_outputs_that_it_is_made_of(tmp_path: Path) -> None:
    def runs(name: str, loss: float) -> Path:
        ended = Moment("backward", "", 0, {"loss": {"0": torch.tensor(loss)}})
        return run(tmp_path / name, call(outputs=[15.0]), ended)

    plain = runs("plain", 1e-6)
    assert compare(plain, runs("near", 3e-6), [LOOSE], 1).ok
    assert not compare(plain, runs("far", 3e-5), [LOOSE], 1).ok
    assert not compare(plain, runs("near", 3e-6), [Tolerance()], 1).ok


def test_same_bits_tells_zeros_apart_and_nans_not() -> None:
    nan = torch.tensor([math.nan, 1.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(nan, torch.tensor([1.0, math.nan]))
    assert not same_bits(torch.tensor([0j]), torch.tensor([complex(0.0, -0.0)]))
    assert same_bits(torch.tensor([complex(math.nan, 1)]), torch.tensor([complex(math.nan, 1)]))
    assert same_bits(torch.zeros(0), torch.zeros(0))
