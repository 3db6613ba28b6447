from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from sgplan.interpreter import events, peers
from sgplan.interpreter.rank import Rank

from .world import Kept, Left, rank_under, root_of

pytestmark = pytest.mark.usefixtures("patched")


def two_ranks(folder: Path, body: str = "") -> tuple[Rank, Kept, nn.Module, Any]:
    """Rank 0 of two with one root, after DDP was entered."""
    rank, kept = rank_under(folder, body, world=2)
    model = nn.Linear(3, 2)
    rank.add_root(root_of(model))
    store = HashStore()
    rank.peers.store = store
    return rank, kept, model, store


def test_a_wait_in_vain_names_the_ranks_that_ended(tmp_path: Path) -> None:
    rank, kept, _, store = two_ranks(tmp_path)
    store.set("sgplan/ended/1", "7")
    error = rank.peers.lost("model", RuntimeError("timed out\nmore"))
    assert "rank 1 ended its script after step 7" in str(error)
    (raised,) = kept.of(events.DiagnosticRaised)
    assert raised.diagnostic["code"] == "SG0905"
    assert raised.diagnostic["notes"] == ["timed out"]


def test_a_wait_in_vain_without_an_end_says_only_that(tmp_path: Path) -> None:
    rank, kept, _, _ = two_ranks(tmp_path)
    error = rank.peers.lost("model", RuntimeError("timed out"))
    assert "waited in vain for a reduction of `model` in step 1" in str(error)
    assert kept.codes() == ["SG0904"]


def test_a_wait_in_vain_names_the_ranks_that_are_in_no_backward(tmp_path: Path) -> None:
    rank, kept, _, store = two_ranks(tmp_path)
    store.set("sgplan/at/1", "4 script")
    error = rank.peers.lost("model", RuntimeError("timed out"))
    assert "rank 1 ended step 4 and is in no backward" in str(error)
    assert kept.codes() == ["SG0904"]


def test_a_wait_in_vain_does_not_blame_a_rank_that_waits_too(tmp_path: Path) -> None:
    rank, _, _, store = two_ranks(tmp_path)
    store.set("sgplan/at/0", "0 script")
    store.set("sgplan/at/1", "0 backward")
    assert "waited in vain" in str(rank.peers.lost("model", RuntimeError("timed out")))


def test_progress_is_published_when_it_changes(tmp_path: Path) -> None:
    rank, _, _, store = two_ranks(tmp_path)
    rank.peers.publish_progress()
    assert store.get("sgplan/at/0") == b"0 script"
    with rank.backward([], plain=True):
        rank.peers.publish_progress()
        assert store.get("sgplan/at/0") == b"0 backward"
    store.set("sgplan/at/0", "theirs")
    with rank.backward([], plain=True):
        rank.peers.publish_progress()
    assert store.get("sgplan/at/0") == b"theirs"


def test_progress_is_silent_before_ddp_and_when_the_store_is_gone(tmp_path: Path) -> None:
    rank, _, _, _ = two_ranks(tmp_path)

    class Gone:
        def clone(self) -> Any:
            raise RuntimeError("connection reset")

    gone: Any = Gone()
    for store in (None, gone, None):
        rank.peers.store = store
        rank.peers.publish_progress()
    assert rank.peers.store is None


def test_the_end_is_published_for_the_others(tmp_path: Path) -> None:
    rank, _, _, store = two_ranks(tmp_path)
    rank.end("returned")
    assert store.get("sgplan/ended/0") == b"0"


def test_ranks_that_differ_are_noted(tmp_path: Path) -> None:
    rank, kept, _, store = two_ranks(tmp_path)
    store.set("sgplan/likeness/model/1/1", "in_graph")
    rank.peers.compare(1)
    (note,) = kept.of(events.NoteAdded)
    assert "by hooks on rank 0, by in-graph reductions on rank 1" in note.text
    assert kept.codes() == []


def test_ranks_that_differ_are_refused_when_the_plan_says_strict(tmp_path: Path) -> None:
    rank, kept, _, store = two_ranks(tmp_path, "capture { agree = strict }")
    store.set("sgplan/likeness/model/1/1", "in_graph")
    with pytest.raises(Left):
        rank.peers.compare(1)
    assert kept.codes() == ["SG1003"]


def test_strict_ends_a_rank_whose_peers_never_end_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "STRICT_WAIT", 0.05)
    rank, kept, _, _ = two_ranks(tmp_path, "capture { agree = strict }")
    with pytest.raises(Left):
        rank.peers.compare(1)
    assert kept.codes() == ["SG0904"]


def test_stock_roots_are_not_compared(tmp_path: Path) -> None:
    rank, _, _, store = two_ranks(tmp_path)
    rank.roots[0].path = "stock"
    rank.peers.compare(1)
    assert not store.check(["sgplan/likeness/model/1/0"])


@pytest.mark.usefixtures("group")
def test_a_contract_of_one_rank_is_agreed_and_the_part_written(tmp_path: Path) -> None:
    rank, kept = rank_under(tmp_path)
    model = nn.Linear(3, 2)
    root = root_of(model)
    rank.add_root(root)
    assert dist.group.WORLD is not None
    rank.peers.agree(root, dist.group.WORLD, ["path planned"])
    assert [event.root for event in kept.of(events.ContractAgreed)] == ["model"]
    assert (tmp_path / "program-0.msgpack").exists()


@pytest.mark.usefixtures("group")
def test_the_same_topic_is_never_used_twice(tmp_path: Path) -> None:
    rank, kept = rank_under(tmp_path)
    models = [nn.Linear(3, 2), nn.Linear(4, 2)]
    assert dist.group.WORLD is not None
    for place, model in enumerate(models):
        root = root_of(model, name=f"model{place}")
        rank.add_root(root)
        rank.peers.agree(root, dist.group.WORLD, [])
    assert len({event.digest for event in kept.of(events.ContractAgreed)}) == 2


def test_overlap_required_of_an_eager_root_is_judged_on_its_first_step(tmp_path: Path) -> None:
    from sgplan.interpreter import step_end

    from .world import group_of_one, reducer_of

    rank, kept = rank_under(tmp_path, "sync { overlap = required }")
    model = nn.Linear(3, 2)
    rank.add_root(root_of(model))
    with group_of_one():
        reducer, _ = reducer_of(model, tmp_path)
        reducer.late.append("b0")
        with pytest.raises(Left):
            step_end.account(rank, reducer)
    assert kept.codes() == ["SG0502"]


def test_hooks_of_an_in_graph_root_are_a_counted_fallback(tmp_path: Path) -> None:
    from sgplan.interpreter import step_end

    from .world import group_of_one, reducer_of

    rank, kept = rank_under(tmp_path)
    model = nn.Linear(3, 2)
    rank.add_root(root_of(model, path="in_graph"))
    with group_of_one():
        reducer, _ = reducer_of(model, tmp_path)
        reducer.hooked, reducer.taken, reducer.wait_seconds = 1, 1, 0.5
        step_end.account(rank, reducer)
    (fallback,) = kept.of(events.FallbackTaken)
    assert fallback.why == "1 of 2 gradients were not safe inside the graph"
    assert rank.steps.wait == 0.5
    assert (reducer.hooked, reducer.taken, reducer.wait_seconds) == (0, 0, 0.0)


def test_a_root_that_compiles_and_was_never_captured_is_listed(tmp_path: Path) -> None:
    from sgplan.interpreter import shortfalls

    rank, kept = rank_under(tmp_path)
    model = nn.Linear(3, 2)
    root = root_of(model)
    root.engine = "inductor"
    rank.add_root(root)
    shortfalls.uncaptured(rank)
    assert kept.of(events.CaptureMissed) == []
    root.called = 1
    shortfalls.uncaptured(rank)
    (miss,) = kept.of(events.CaptureMissed)
    assert (miss.where, miss.why) == ("model", "no call of it was captured")


def test_an_optimizer_belongs_to_the_root_of_most_of_its_elements(tmp_path: Path) -> None:
    rank, _ = rank_under(tmp_path)
    large, small = nn.Linear(30, 20), nn.Linear(3, 2)
    rank.add_root(root_of(small))
    rank.add_root(root_of(large, name="model1"))
    optimizer = torch.optim.SGD([*small.parameters(), *large.parameters()], lr=0.1)
    fact = rank.optimizers.fact(optimizer)
    assert (fact.root, fact.kind, fact.why) == ("model1", "as_written", "")
    rank.optimizers.fused_built(optimizer)
    assert rank.optimizers.fact(optimizer).kind == "fused"
    rank.optimizers.cannot_follow(optimizer, "a test")
    assert rank.optimizers.fact(optimizer).why == "a test"


@pytest.mark.usefixtures("group")
def test_a_group_that_is_not_all_ranks_is_told(tmp_path: Path) -> None:
    """Who is not in it is not to blame for a wait in it."""
    rank, kept = rank_under(tmp_path, world=2)
    root = root_of(nn.Linear(3, 2))
    rank.add_root(root)
    assert dist.group.WORLD is not None
    rank.peers.agree(root, dist.group.WORLD, [])  # of one, in a run of two
    assert [event.ranks for event in kept.of(events.ContractAgreed)] == [[0]]


def test_a_program_that_cannot_be_written_is_no_error_of_the_training(tmp_path: Path) -> None:
    rank, kept = rank_under(tmp_path / "deleted")
    rank.add_root(root_of(nn.Linear(3, 2)))
    rank.write_part()
    notes = [note.subject for note in kept.of(events.NoteAdded)]
    assert notes == ["counter-0.bin", "program-0.msgpack"]
    assert kept.of(events.ProgramWritten) == []
