"""Digests and contracts: equal for equal runs, and a difference has a name."""

from __future__ import annotations

from dataclasses import replace

from sgplan.planner.digest import (
    contract_digest,
    contract_text,
    first_difference,
    graphs_digest,
    parameters_digest,
)
from sgplan.planner.facts import Facts
from sgplan.planner.passes.assign_buckets import root_buckets

from .build import BACKWARD, FORWARD, GPT_PARAMETERS, facts, parameter, plan, root

SMALL = plan("sync { bucket = 1KiB  first_bucket = 1KiB }")


def contract(found: Facts, wanted: object = None) -> list[str]:
    chosen = SMALL if wanted is None else wanted
    one = found.roots[0]
    return contract_text(chosen, found, one, root_buckets(chosen, one))  # pyright: ignore


def test_ranks_of_one_run_agree() -> None:
    assert contract(facts(rank=0)) == contract(facts(rank=1))


def test_engine_path_and_graphs_are_no_part_of_it() -> None:
    assert contract(facts()) == contract(facts(root("eager", "hooks", graphs=())))


def test_another_parameter_order_is_named() -> None:
    swapped = (GPT_PARAMETERS[1], GPT_PARAMETERS[0], *GPT_PARAMETERS[2:])
    found = first_difference(contract(facts()), contract(facts(root(parameters=swapped))))
    assert found == (
        "`parameter 0 of model: tok.weight f32 cpu 64x8 strides 8x1` here, "
        "`parameter 0 of model: blocks.0.fc.weight f32 cpu 32x8 strides 8x1` there"
    )


def test_other_buckets_of_one_plan_are_named() -> None:
    one = facts().roots[0]
    other = contract_text(SMALL, facts(), one, root_buckets(SMALL, one)[:1])
    assert first_difference(contract(facts()), other).startswith(
        "`root model with 7 parameters and"
    )


def test_another_plan_comes_before_all_else() -> None:
    other = replace(SMALL, digest="0" * 64)
    assert first_difference(contract(facts()), contract(facts(), other)).startswith("`plan ")


def test_the_setting_that_differs_is_named() -> None:
    other = plan("sync { bucket = 1KiB  first_bucket = 2KiB }")
    assert first_difference(contract(facts()), contract(facts(), other)) == (
        "`plan sync.first_bucket = 1024` here, `plan sync.first_bucket = 2048` there"
    )


def test_a_missing_line_is_nothing() -> None:
    assert first_difference(["a"], ["a", "b"]) == "nothing here, `b` there"
    assert first_difference(["a", "b", "c"], ["a", "c"]) == "`b` here, nothing there"
    assert first_difference(["a", "c"], ["a", "b", "c"]) == "nothing here, `b` there"


def test_equal_contracts_have_no_difference() -> None:
    assert first_difference(contract(facts()), contract(facts())) == ""
    assert contract_digest([contract(facts())]) == contract_digest([contract(facts(rank=1))])


def test_strides_and_dtypes_change_the_parameter_digest() -> None:
    base = parameters_digest([root(parameters=[parameter("w", 4, 4)])])
    turned = replace(parameter("w", 4, 4), strides=(1, 4))
    assert parameters_digest([root(parameters=[turned])]) != base
    assert parameters_digest([root(parameters=[parameter("w", 4, 4, dtype="f64")])]) != base


def test_the_order_of_compiling_does_not_change_the_graph_digest() -> None:
    assert graphs_digest([root(graphs=(FORWARD, BACKWARD))]) == graphs_digest(
        [root(graphs=(BACKWARD, FORWARD))]
    )
