"""What a plan allows follows from what acts under it, and from what it declares."""

from __future__ import annotations

from sgplan.grammar.plan import Verify
from sgplan.planner.facts import Facts
from sgplan.planner.numerics import numeric_changes
from sgplan.proof.tolerance import Tolerance, tolerance
from tests.planner.build import facts, fused, plan, root

KERNELS = Tolerance(1e-6, 1e-5, 0.0, 4, 8)


def allowed(
    text: str,
    found: Facts,
    computed: tuple[str, ...] = ("float32",),
    steps: list[int] | None = None,
) -> Tolerance:
    written = plan(text, found.world)
    changes = numeric_changes(written, found, steps)
    return tolerance(changes, written.verify, found.world, computed)


EAGER = facts(root("eager", "hooks"))
ALONE = facts(root("eager", "none"), world=1)
COMPILED = facts(root(kind="compiled", path="none"), world=1)


def test_nothing_that_rounds_otherwise_asks_for_every_bit() -> None:
    assert allowed("", EAGER) == Tolerance()
    assert allowed("", EAGER, ("bfloat16",)) == Tolerance()


def test_a_block_that_nothing_carries_out_allows_nothing() -> None:
    assert allowed("capture { engine = eager }", ALONE) == Tolerance()
    assert allowed("capture { agree = strict }", EAGER) == Tolerance()
    assert allowed("sync { wire = bf16 }", ALONE) == Tolerance()
    guard = 'guard "g" { on = input[0].shape[0]  allow = [4]  otherwise = error }'
    assert allowed(guard, ALONE) == Tolerance()
    assert allowed("update { optimizer = fused }", ALONE) == Tolerance()  # it was refused


def test_other_kernels_in_fp32_may_round() -> None:
    assert allowed("capture { engine = inductor }", COMPILED) == KERNELS


def test_low_precision_of_the_script_is_allowed_where_kernels_change() -> None:
    found = allowed("", COMPILED, ("bfloat16", "float32"))
    assert found == Tolerance(4 * 2**-7, 8 * 2**-7, 0.0, 4, 8, low=2**-7)


def test_a_narrow_wire_is_allowed_to_gradients_alone() -> None:
    assert allowed("sync { wire = bf16 }", EAGER) == Tolerance(0.0, 4 * 2**-7)


def test_sums_of_more_ranks_have_no_order() -> None:
    assert allowed("", facts(root("eager", "hooks"), world=4)) == Tolerance(gradient_eps=4)


def test_a_stage_allows_what_its_own_blocks_declare() -> None:
    stages = """precision "warm" { steps = ..9  compute = fp32 }
precision "main" { steps = 10..  compute = bf16 }"""
    assert allowed(stages, COMPILED, steps=[9]) == KERNELS
    assert allowed(stages, COMPILED, steps=[10]).forward == 4 * 2**-7


def test_stored_parameters_round_in_the_update_too() -> None:
    found = allowed('precision "low" { params = bf16 }', ALONE)
    assert (found.update, found.stored, found.low) == (1e-5, True, 2**-7)
    masters = allowed('precision "wide" { master = fp32 }', ALONE, ("bfloat16",))
    assert masters == Tolerance(update=1e-5, stored=True)


def test_another_optimizer_rounds_in_the_update_alone() -> None:
    assert allowed("update { optimizer = fused }", fused(ALONE)) == Tolerance(update=1e-5)


def test_the_plan_has_the_last_word() -> None:
    wanted = Verify(forward=1e-3, gradient=1e-2)
    changes = numeric_changes(plan("update { optimizer = fused }"), fused(COMPILED))
    assert tolerance(changes, wanted, 4, []) == Tolerance(1e-3, 1e-2, 1e-5)
