from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from sgplan.interpreter import agree
from sgplan.interpreter.agree import Agreement, disagreement


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(rank)` returns, or raises, in one thread a rank."""
    found: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return found


def agreement(store: Any, rank: int, count: int = 3, timeout: float = 10.0) -> Agreement:
    return Agreement(store, "model", rank, range(count), timeout)


def nobody(absent: list[int]) -> None:
    raise AssertionError(f"{absent} are there")


def test_equal_contracts_agree_on_every_rank() -> None:
    store = HashStore()

    def enter(rank: int) -> int | None:
        mine = agreement(store, rank)
        mine.publish("d1", ["plan a"])
        return mine.differing(nobody)

    assert together(3, enter) == [None, None, None]


def test_all_ranks_find_the_same_first_difference() -> None:
    store = HashStore()

    def enter(rank: int) -> tuple[int | None, list[str]]:
        mine = agreement(store, rank)
        mine.publish(f"d{rank // 1 if rank else 0}", ["plan a", f"bucket b0 of rank {rank}"])
        other = mine.differing(nobody)
        assert other is not None
        text = mine.text(other)
        mine.leave()
        return other, text

    assert together(3, enter) == [(1, ["plan a", "bucket b0 of rank 1"])] * 3


def test_a_late_rank_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    monkeypatch.setattr(agree, "PATIENCE", timedelta(milliseconds=50))
    store, named = HashStore(), []

    def enter(rank: int) -> int | None:
        mine = agreement(store, rank, 2)
        if rank == 1:
            time.sleep(0.4)
        mine.publish("d", ["plan a"])
        return mine.differing(named.append if rank == 0 else lambda absent: None)

    assert together(2, enter) == [None, None]
    assert named
    assert named[0] == [1]


def test_a_rank_that_never_comes_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    monkeypatch.setattr(agree, "PATIENCE", timedelta(milliseconds=20))
    mine = agreement(HashStore(), 0, 3, timeout=0.1)
    mine.publish("d", ["plan a"])
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2\] did not enter DDP"):
        mine.differing(lambda absent: None)


def test_topics_do_not_mix() -> None:
    store = HashStore()
    Agreement(store, "first", 0, [0], 1.0).publish("d1", ["plan a"])
    second = Agreement(store, "second", 0, [0], 1.0)
    second.publish("d2", ["plan b"])
    assert second.differing(nobody) is None
    assert second.text(0) == ["plan b"]


def test_leaving_does_not_wait_long_for_a_dead_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    monkeypatch.setattr(agree, "PATIENCE", timedelta(milliseconds=50))
    began = time.monotonic()
    agreement(HashStore(), 0, 2).leave()
    assert time.monotonic() - began < 2


def test_a_disagreement_names_ranks_and_difference() -> None:
    found = disagreement("model", 0, 2, "`plan a` here, `plan b` there")
    assert found.code == "SG1003"
    assert "ranks 0 and 2" in found.message
    assert "`plan a` here, `plan b` there" in found.notes[0]
