"""What a plan allows follows from what it declares."""

from __future__ import annotations

from sgplan.proof.tolerance import EPS32, Tolerance, tolerance
from tests.planner.build import plan


def test_nothing_that_changes_numbers_asks_for_every_bit() -> None:
    assert tolerance(plan(), ["insert_reductions"], 2, ["float32"]) == Tolerance()


def test_other_kernels_in_fp32_may_round() -> None:
    assert tolerance(plan(), ["lower_roots"], 2, ["float32"]) == Tolerance(1e-6, 1e-5)


def test_low_precision_of_the_script_is_allowed_only_where_kernels_change() -> None:
    assert tolerance(plan(), ["insert_reductions"], 2, ["bfloat16"]) == Tolerance()
    found = tolerance(plan(), ["lower_roots"], 2, ["bfloat16", "float32"])
    assert found == Tolerance(4 * 2**-7, 8 * 2**-7)


def test_a_narrow_wire_is_allowed_to_gradients_alone() -> None:
    narrow = plan("sync { wire = bf16 }")
    assert tolerance(narrow, ["compress_wire"], 2, []) == Tolerance(0.0, 4 * 2**-7)


def test_sums_of_more_ranks_have_no_order() -> None:
    assert tolerance(plan(world=4), ["insert_reductions"], 4, []).gradient == 4 * EPS32


def test_the_plan_has_the_last_word() -> None:
    written = plan("verify { forward = 1e-3  gradient = 1e-2 }")
    found = tolerance(written, ["lower_roots", "insert_updates"], 2, [])
    assert found == Tolerance(1e-3, 1e-2, 1e-5)
