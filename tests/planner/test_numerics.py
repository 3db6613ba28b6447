"""One list of what can change numbers: from facts, one change for each pass and block."""

from __future__ import annotations

from dataclasses import replace

from sgplan.planner.capture.casts import CastPrecision
from sgplan.planner.capture.scale import ScaleLoss
from sgplan.planner.facts import Facts, OptimizerFact
from sgplan.planner.kernels.substitute import Substitution
from sgplan.planner.numerics import (
    GRAPH_PASSES,
    active_numerics,
    engine_asker,
    numeric_changes,
)
from sgplan.planner.pipeline import PASSES

from .build import facts, fused, plan, root
from .test_leave_out import FOUND, WHOLE

EAGER = facts(root("eager", "hooks"))


def names(text: str, found: Facts) -> list[str]:
    return [change.name for change in numeric_changes(plan(text, found.world), found)]


def test_every_change_is_named_in_the_order_in_which_it_can_be_added() -> None:
    changes = numeric_changes(plan(WHOLE), FOUND)
    assert [(change.name, change.clause) for change in changes] == [
        ("insert_reductions", "sync.a"),
        ("insert_reductions", "sync.b"),
        ("compress_wire", "sync.a"),
        ("compress_wire", "sync.b"),
        ("lower_roots", "sync.a"),
        ("insert_ready", "sync.a"),
        ("guard_calls", "guard.rows"),
        ("guard_calls", "guard.columns"),
        ("scale_loss", "precision.warm"),
        ("store_parameters", "precision.warm"),
        ("cast_precision", "precision.warm"),
        ("cast_precision", "precision.main"),
        ("steer_fusion", "separate.skip"),
        ("steer_fusion", "fuse.bias_gelu"),
        ("substitute_kernels", "fuse.norm"),
        ("recompute_values", "recompute.first"),
        ("recompute_values", "recompute.second"),
        ("insert_updates", "update"),
    ]
    lines = {change.key: change.span.line for change in changes if change.span is not None}
    assert lines["cast_precision precision.main"] == lines["cast_precision precision.warm"] + 3
    assert len(lines) == len(changes)


def test_passes_are_called_by_their_names() -> None:
    assert {each.name for each in (CastPrecision, Substitution, ScaleLoss)} == GRAPH_PASSES
    found = {change.name for change in numeric_changes(plan(WHOLE), FOUND)}
    assert found >= GRAPH_PASSES
    assert {"insert_reductions", "compress_wire", "lower_roots", "insert_updates"} <= found & {
        each.name for each in PASSES
    }


def test_an_empty_plan_changes_only_who_reduces() -> None:
    assert names("", EAGER) == ["insert_reductions"]


def test_what_nothing_carries_out_changes_nothing() -> None:
    alone = facts(root("eager", "none"), world=1)
    assert names("capture { engine = eager }", alone) == []
    assert names("capture { agree = strict }", alone) == []
    assert names("sync { wire = bf16 }", alone) == []
    assert names("update { optimizer = fused }", alone) == []
    guard = 'guard "g" { on = input[0].shape[0]  allow = [4]  otherwise = error }'
    assert names(guard, alone) == []
    stock = facts(root("inductor", "stock"))
    assert names("sync { by = stock }", stock) == []


def test_a_block_for_another_model_changes_nothing() -> None:
    text = 'model "a" { is = "t:A" }\nfuse "g" { model = "a"  match = bias -> aten.gelu }'
    assert "steer_fusion" not in names(text, facts(root()))
    assert "steer_fusion" in names(text, facts(root(), root(name="a")))


def test_a_script_that_compiles_is_lowered_by_default() -> None:
    (_, change, _) = numeric_changes(plan(), facts(root()))
    assert (change.name, change.clause, change.span, change.why) == (
        "lower_roots",
        "capture",
        None,
        "",
    )


def test_eager_kernels_in_the_place_of_compiled_ones_are_a_change() -> None:
    found = facts(root("eager", "none", kind="compiled"), world=1)
    assert names("capture { engine = eager }", found) == ["lower_roots"]


def test_the_engine_is_asked_for_by_the_block_that_needs_it() -> None:
    asked = {
        "capture { engine = inductor }": "capture",
        "capture { rounding = as_eager }": "capture",
        "capture { dynamic = off }\nsync { by = in_graph }": "sync",
        'capture { dynamic = off }\nprecision "p" { compute = bf16 }': "precision.p",
        'recompute "r" { in = ["blocks.*"]  memory = 50% }': "recompute.r",
        "": "capture",
    }
    for text, clause in asked.items():
        assert engine_asker(plan(text), None).address == clause


def test_only_blocks_that_hold_in_a_step_change_it() -> None:
    stages = """precision "warm" { steps = ..9  compute = fp16 }
precision "main" { steps = 10..  compute = bf16 }"""
    for steps, held in (([0], ["warm"]), ([9, 10], ["warm", "main"]), ([10, 11], ["main"])):
        changes = numeric_changes(plan(stages), facts(root()), steps)
        casts = [change.clause for change in changes if change.name == "cast_precision"]
        assert casts == [f"precision.{name}" for name in held]


def test_sums_of_two_ranks_have_one_order_and_those_of_more_have_many() -> None:
    assert active_numerics(plan(), EAGER) == ()
    (change,) = active_numerics(plan(world=4), replace(EAGER, world=4))
    assert (change.name, change.rounds) == ("insert_reductions", ("sums",))


def test_a_refused_optimizer_is_no_change_and_each_reason_stands_once() -> None:
    two = (
        OptimizerFact("AdamW", 8, "fused", root="model"),
        OptimizerFact("SGD", 8, "fused", root="a"),
        OptimizerFact("LBFGS", 8, "as_written", "it has no fused step"),
    )
    found = replace(EAGER, optimizers=two)
    text = """model "a" { is = "t:A" }
model "model" { is = "t:B" }
update "a" { model = "a"  optimizer = fused }
update "b" { model = "model"  optimizer = fused }"""
    written = plan(text)
    updates = [c for c in numeric_changes(written, found) if c.name == "insert_updates"]
    assert [change.clause for change in updates] == ["update.b", "update.a"]
    assert len(active_numerics(written, found)) == 1
    assert "insert_updates" not in names(text, EAGER)


def test_the_listing_and_the_search_have_one_list() -> None:
    written, found = plan(WHOLE), fused(facts(replace(root(name="a"), made_compiled=True)))
    changes = numeric_changes(written, found)
    assert set(active_numerics(written, found)) <= set(changes)
