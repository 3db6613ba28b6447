"""A plan without some of its passes: what is left, and that it can always run."""

from __future__ import annotations

from dataclasses import replace

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import RootFact
from sgplan.planner.leave_out import everything, numeric_changes, without

from .build import plan, root

WHOLE = """capture { engine = auto  dynamic = off }
fuse "bias_gelu" { match = bias -> aten.gelu }
fuse "norm" { match = norm  with = triton("sgplan:add_layer_norm") }
separate "skip" { match = aten.add -> norm }
sync { bucket = 1MiB  wire = bf16  by = in_graph }
update { optimizer = fused }"""


def compiled() -> RootFact:
    return replace(root(), engine="inductor", path="in_graph", made_compiled=True)


def keys(found: Plan) -> list[str]:
    return [change.key for change in numeric_changes(found, [compiled()])]


def test_every_change_is_named_in_the_order_in_which_it_can_be_added() -> None:
    changes = numeric_changes(plan(WHOLE), [compiled()])
    assert [(change.name, change.clause) for change in changes] == [
        ("insert_reductions", "sync"),
        ("compress_wire", "sync"),
        ("lower_roots", "capture"),
        ("insert_ready", "sync"),
        ("steer_fusion", "separate.skip"),
        ("steer_fusion", "fuse.bias_gelu"),
        ("substitute_kernels", "fuse.norm"),
        ("insert_updates", "update"),
    ]
    assert next(change.span.line for change in changes if change.span) == 7
    assert [change.name for change in changes if change.on_graph] == ["substitute_kernels"]


def test_an_empty_plan_changes_only_who_reduces() -> None:
    assert [c.name for c in numeric_changes(plan(), [root("eager", "hooks")])] == [
        "insert_reductions"
    ]


def test_without_anything_the_script_is_as_written_under_stock_ddp() -> None:
    whole = plan(WHOLE)
    bare = without(whole, everything(whole))
    assert bare.sync_of(None).by == "stock"
    assert bare.sync_of(None).wire == "as_written"
    assert bare.update_of(None).optimizer == "as_written"
    assert (bare.captures, bare.fuses, bare.separates) == ((), (), ())


def test_nothing_left_out_is_the_plan_itself() -> None:
    whole = plan(WHOLE)
    assert without(whole, ()) is whole


def test_one_rule_can_be_left_out_and_the_graph_stays() -> None:
    smaller = without(plan(WHOLE), ["steer_fusion fuse.bias_gelu", "insert_ready sync"])
    assert [rule.address for rule in smaller.fuses] == ["fuse.norm"]
    assert smaller.sync_of(None).by == "hooks"
    # `auto` meant Inductor because of clauses that are gone now.
    assert smaller.capture_of(None).engine == "inductor"
    assert smaller.digest != plan(WHOLE).digest


def test_what_a_guard_compiled_stays_compiled_without_the_guard() -> None:
    smaller = without(plan('guard "g" { on = input[0].shape[0]  allow = [4] }'), ["guards guard.g"])
    assert smaller.guards == ()
    assert smaller.capture_of(None).engine == "inductor"


def test_every_key_that_is_reported_can_be_left_out() -> None:
    whole = plan(WHOLE)
    for key in keys(whole):
        assert replace(without(whole, [key]), digest=whole.digest) != whole, key
