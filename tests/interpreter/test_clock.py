"""Clock offsets over a real store: against a clock that both sides share, and one that is off."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from sgplan.interpreter.clock import Offset, ask_time, keep_time
from sgplan.planner.torch_api import own_connection


def measured(skew_ns: int) -> Offset:
    """The offset of a clock that is `skew_ns` ahead, between two connections to one store."""
    server = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))
    ours, theirs = own_connection(server), own_connection(server)
    keeper = threading.Thread(target=keep_time, args=(theirs, "t", [1]))
    keeper.start()
    try:
        return ask_time(ours, "t", 1, now=lambda: time.time_ns() + skew_ns)
    finally:
        keeper.join(20)


@pytest.mark.parametrize("skew_ns", [0, 3_600_000_000_000, -250_000])
def test_the_true_offset_lies_within_the_bound(skew_ns: int) -> None:
    found = measured(skew_ns)
    assert abs(found.offset_ns + skew_ns) <= found.error_ns
    print(f"off by {abs(found.offset_ns + skew_ns) / 1e3:.0f} us, bound {found.error_ns / 1e3:.0f}")


def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))


def test_a_rank_that_never_asks_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgplan.interpreter.clock.PATIENCE", timedelta(seconds=3))
    store = server()
    left: list[set[int]] = []
    keeper = threading.Thread(
        target=lambda: left.append(keep_time(own_connection(store), "t", range(1, 4)))
    )
    began = time.monotonic()
    keeper.start()
    found = [ask_time(own_connection(store), "t", rank) for rank in (3, 2)]
    assert time.monotonic() - began < 2
    assert all(abs(each.offset_ns) <= each.error_ns for each in found)
    keeper.join(20)  # it does not wait for ever
    assert left == [{1}]


def test_a_rank_that_stops_asking_holds_up_the_others_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sgplan.interpreter.clock.BETWEEN", timedelta(milliseconds=200))
    store = server()
    store.set("sgplan/clock/t/ask/1/0", "")  # and no more
    left: list[set[int]] = []
    keeper = threading.Thread(
        target=lambda: left.append(keep_time(own_connection(store), "t", [1, 2]))
    )
    keeper.start()
    assert ask_time(own_connection(store), "t", 2).error_ns < 10**9
    keeper.join(20)
    assert left == [{1}]


def test_a_rank_0_that_is_gone_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgplan.interpreter.clock.PATIENCE", timedelta(milliseconds=200))
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        ask_time(server(), "t", 1)
    assert time.monotonic() - began < 5
