"""A plan without some of its passes: what is left, and that it can always run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sgplan.grammar.plan import Dynamic, Plan
from sgplan.planner import graph_need
from sgplan.planner.leave_out import everything, without
from sgplan.planner.numerics import numeric_changes

from .build import facts, fused, plan, root

WHOLE = """model "a" { is = "train:GPT" }
model "b" { is = "train:Encoder" }
capture { engine = auto  dynamic = off }
fuse "bias_gelu" { match = bias -> aten.gelu }
fuse "norm" { match = norm  with = triton("sgplan:add_layer_norm") }
separate "skip" { match = aten.add -> norm }
sync "a" { model = "a"  bucket = 1MiB  wire = bf16  by = in_graph }
sync "b" { model = "b"  wire = fp16 }
update { optimizer = fused }
guard "rows" { on = input[0].shape[0]  allow = [4, 8]  otherwise = pad(with = 0) }
guard "columns" { on = input[0].shape[1]  allow = [4] }
precision "warm" {
  steps = ..9  compute = fp16  keep_fp32 = [aten.gelu]  params = bf16  master = fp32
}
precision "main" { steps = 10..  compute = bf16  params = bf16  master = fp32 }
recompute "first" { in = ["blocks.0.*"]  memory = 50% }
recompute "second" { in = ["blocks.1.*"]  memory = 50% }"""

FOUND = fused(
    facts(
        replace(root(name="a"), made_compiled=True),
        root("eager", "hooks", name="b"),
    )
)


def keys(found: Plan) -> list[str]:
    return [change.key for change in numeric_changes(found, FOUND)]


def test_without_anything_the_script_is_as_written_under_stock_ddp() -> None:
    whole = plan(WHOLE)
    bare = without(whole, everything(whole))
    for model in (None, "a", "b"):
        assert bare.sync_of(model).by == "stock"
        assert bare.sync_of(model).wire == "as_written"
        assert bare.update_of(model).optimizer == "as_written"
        assert bare.capture_of(model).engine == "as_written"
        assert bare.capture_of(model).dynamic == "auto"
    assert (bare.fuses, bare.separates, bare.guards) == ((), (), ())
    assert (bare.precisions, bare.recomputes) == ((), ())
    stock = replace(root("inductor", "stock"), made_compiled=False)
    assert numeric_changes(bare, facts(stock)) == ()


def test_every_change_is_among_everything() -> None:
    whole = plan(WHOLE)
    assert set(keys(whole)) <= everything(whole)


def test_nothing_left_out_is_the_plan_itself() -> None:
    whole = plan(WHOLE)
    assert without(whole, ()) is whole


def test_one_rule_can_be_left_out_and_the_graph_stays() -> None:
    smaller = without(plan(WHOLE), ["steer_fusion fuse.bias_gelu", "insert_ready sync.a"])
    assert [rule.address for rule in smaller.fuses] == ["fuse.norm"]
    assert smaller.sync_of("a").by == "hooks"
    # `auto` meant Inductor because of clauses that are gone now.
    assert smaller.capture_of("a").engine == "inductor"
    assert smaller.digest != plan(WHOLE).digest


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('guard "g" { on = input[0].shape[0]  allow = [4] }', "guard_calls guard.g"),
        ('precision "p" { compute = bf16 }', "cast_precision precision.p"),
        ('recompute "r" { in = ["blocks.*"]  memory = 50% }', "recompute_values recompute.r"),
        ('fuse "f" { match = bias -> aten.gelu }', "steer_fusion fuse.f"),
    ],
)
def test_what_a_block_compiled_stays_compiled_without_the_block(text: str, key: str) -> None:
    whole = plan(text)
    assert key in [
        c.key for c in numeric_changes(whole, facts(replace(root(), made_compiled=True)))
    ]
    smaller = without(whole, [key])
    assert not graph_need.anywhere(smaller)
    assert smaller.capture_of(None).engine == "inductor"
    assert without(whole, everything(whole)).capture_of(None).engine != "inductor"


def test_one_sync_block_is_left_out_of_several() -> None:
    smaller = without(plan(WHOLE), ["compress_wire sync.a", "insert_reductions sync.b"])
    assert (smaller.sync_of("a").wire, smaller.sync_of("a").by) == ("as_written", "in_graph")
    assert (smaller.sync_of("b").wire, smaller.sync_of("b").by) == ("as_written", "stock")


def test_one_guard_and_one_recompute_block_are_left_out_of_several() -> None:
    smaller = without(plan(WHOLE), ["guard_calls guard.rows", "recompute_values recompute.second"])
    assert [guard.address for guard in smaller.guards] == ["guard.columns"]
    assert [block.address for block in smaller.recomputes] == ["recompute.first"]


def test_a_precision_block_without_its_casts_keeps_its_ops_its_storage_and_its_scale() -> None:
    smaller = without(plan(WHOLE), ["cast_precision precision.warm"])
    warm, main = smaller.precisions
    assert (warm.compute, warm.keep_fp32, warm.loss_scale) == ("as_written", (), Dynamic())
    assert (warm.params, main.compute) == ("bf16", "bf16")


def test_a_precision_block_without_its_scale_lets_another_one_scale() -> None:
    gone = ["scale_loss precision.warm", "cast_precision precision.warm"]
    assert without(plan(WHOLE), gone).precisions[0].loss_scale == "auto"
    assert without(plan(WHOLE), gone[:1]).precisions[0].loss_scale == "off"


def test_storage_is_left_out_of_every_block_that_says_it() -> None:
    smaller = without(plan(WHOLE), ["store_parameters precision.warm"])
    assert not any(block.stores for block in smaller.precisions)
    assert [block.compute for block in smaller.precisions] == ["fp16", "bf16"]


def test_every_key_that_is_reported_can_be_left_out() -> None:
    whole = plan(WHOLE)
    for key in keys(whole):
        assert replace(without(whole, [key]), digest=whole.digest) != whole, key


def test_every_prefix_of_the_changes_is_a_plan_in_which_what_comes_later_is_gone() -> None:
    whole = plan(WHOLE)
    reported = keys(whole)
    # What a plan asks for is told by its own blocks, but for these, which are facts.
    by_facts = ("insert_reductions", "lower_roots", "insert_ready", "insert_updates")
    for count in range(len(reported) + 1):
        smaller = without(whole, set(reported[count:]))
        left = {key for key in keys(smaller) if key.split()[0] not in by_facts}
        assert left == {key for key in reported[:count] if key.split()[0] not in by_facts}
        assert (not graph_need.anywhere(smaller)) or "lower_roots sync.a" in reported[:count]
