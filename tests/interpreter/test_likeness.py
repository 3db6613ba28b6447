from __future__ import annotations

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from sgplan.interpreter.likeness import LOOKS, Likeness


def two() -> tuple[Likeness, Likeness]:
    store = HashStore()
    return Likeness(store, "model", 0, 2), Likeness(store, "model", 1, 2)


def test_what_the_other_has_not_said_yet_is_no_difference() -> None:
    first, second = two()
    first.publish(1, "hooks", ["a"])
    assert first.difference() == ""
    second.publish(1, "hooks", ["a"])
    assert first.difference() == ""


def test_a_difference_is_found_late_and_once() -> None:
    first, second = two()
    first.publish(1, "in_graph", ["a", "b"])
    first.publish(2, "in_graph", ["a", "b"])
    assert first.difference() == ""
    second.publish(1, "in_graph", ["a", "c", "d"])
    found = first.difference()
    assert "2 graphs on rank 0, 3 on rank 1, 1 in common" in found
    assert first.difference() == ""


def test_the_way_of_reducing_is_compared_in_words() -> None:
    first, second = two()
    first.publish(1, "in_graph", ["a"])
    second.publish(1, "hooks", ["a"])
    assert first.difference() == (
        "`model` reduces by in-graph reductions on rank 0, by hooks on rank 1"
    )


def test_the_order_of_compiles_does_not_matter() -> None:
    first, second = two()
    first.publish(1, "hooks", ["a", "b"])
    second.publish(1, "hooks", ["b", "a"])
    assert first.difference() == ""


def test_ranks_without_graphs_are_alike() -> None:
    first, second = two()
    first.publish(1, "hooks", [])
    second.publish(1, "hooks", [])
    assert first.difference() == ""
    assert second.strict(1, 1.0) == ""


def test_only_some_steps_are_looked_at() -> None:
    first, second = two()
    unseen = max(LOOKS) + 1
    first.publish(unseen, "hooks", ["a"])
    second.publish(unseen, "hooks", ["b"])
    assert first.difference() == ""


def test_each_step_is_compared_with_the_same_step() -> None:
    first, second = two()
    first.publish(1, "hooks", ["a"])
    first.publish(2, "hooks", ["a", "b"])
    second.publish(1, "hooks", ["a"])
    assert first.difference() == ""
    second.publish(2, "hooks", ["a", "b"])
    assert first.difference() == ""


def test_strict_waits_and_says_the_difference() -> None:
    first, second = two()
    second.publish(1, "hooks", ["b"])
    first.publish(1, "hooks", ["a"])
    assert "0 in common" in first.strict(1, 1.0)


def test_strict_gives_up_on_a_rank_that_does_not_come() -> None:
    first, _ = two()
    first.publish(1, "hooks", ["a"])
    with pytest.raises(dist.DistStoreError):
        first.strict(1, 0.05)
