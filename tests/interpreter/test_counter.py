"""The program counter: what a reader sees of a writer that lives, hangs or is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sgplan.interpreter.counter import _USED_AT, ELSEWHERE, PLACES, Counter, CounterFile


def test_a_reader_sees_where_the_writer_is(tmp_path: Path) -> None:
    writer = Counter(tmp_path / "c")
    reader = CounterFile(tmp_path / "c")
    backward, wait = writer.place("backward model"), writer.place("wait b0")
    before = time.time_ns()
    writer.stepped(4)
    writer.enter(backward)
    writer.enter(wait)
    found = reader.position()
    assert found is not None
    assert (found.place, found.step) == ("wait b0", 4)
    assert before - 256 <= found.since_ns <= time.time_ns()  # it counts in 256 ns
    writer.leave(wait)
    found = reader.position()
    assert found is not None
    assert found.place == "backward model"
    writer.leave(backward)
    found = reader.position()
    assert found is not None
    assert found.place == ELSEWHERE


def test_costs_add_up_by_place_from_the_second_time_on(tmp_path: Path) -> None:
    writer = Counter(tmp_path / "c")
    writer.spans = []
    place = writer.place("wait b0")
    writer.enter(place)
    time.sleep(0.1)  # the first time compiles
    writer.leave(place)
    for _ in range(3):
        writer.enter(place)
        time.sleep(0.002)
        writer.leave(place)
    writer.spans = None  # what is not kept costs nothing
    writer.enter(place)
    time.sleep(0.1)
    writer.leave(place)
    writer.publish()
    (cost,) = CounterFile(tmp_path / "c").costs()
    assert (cost.place, cost.times) == ("wait b0", 3)
    assert 0.006 <= cost.seconds < 0.1


def test_a_place_has_one_number_and_too_many_are_elsewhere(tmp_path: Path) -> None:
    writer = Counter(tmp_path / "c")
    numbers = [writer.place(f"wait b{n}") for n in range(PLACES + 5)]
    assert numbers[0] == writer.place("wait b0") != numbers[1]
    assert numbers[-5:] == [0] * 5
    writer.enter(numbers[-1])
    found = CounterFile(tmp_path / "c").position()
    assert found is not None
    assert found.place == ELSEWHERE


def test_a_stopped_process_shows_where_it_stands(tmp_path: Path) -> None:
    code = (
        "import sys, time; from sgplan.interpreter.counter import Counter\n"
        "c = Counter(sys.argv[1]); c.enter(c.place('wait b1')); print(flush=True); time.sleep(60)"
    )
    path = tmp_path / "c"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        child.wait(10)
        found = CounterFile(path).position()
    finally:
        child.kill()
        child.wait(10)
        child.stdout.close() if child.stdout else None
    assert found is not None
    assert (found.place, found.pid) == ("wait b1", child.pid)


def test_a_reader_never_sees_half_a_write(tmp_path: Path) -> None:
    writer = Counter(tmp_path / "c")
    places = [writer.place(f"place {n}") for n in range(20)]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for step, place in enumerate(places):
                writer.stepped(step)
                writer.enter(place)
                writer.leave(place)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reader = CounterFile(tmp_path / "c")
        for _ in range(2000):
            found = reader.position()
            if found is not None and found.place != ELSEWHERE:
                assert found.place == f"place {found.step}"
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("content", [b"", b"nothing", b"\0" * 200])
def test_what_is_no_counter_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(ValueError, match="no program counter"):
        CounterFile(tmp_path / "c")


def test_a_damaged_number_of_places_is_survived(tmp_path: Path) -> None:
    Counter(tmp_path / "c").publish()
    with (tmp_path / "c").open("r+b") as file:
        file.seek(_USED_AT)
        file.write(b"\xff\xff\xff\xff")
    assert CounterFile(tmp_path / "c").costs() == []


def test_a_forked_child_does_not_move_the_rank(tmp_path: Path) -> None:
    """A data loader's worker may run a backward of its own."""
    writer = Counter(tmp_path / "c")
    backward = writer.place("backward")
    child = os.fork()
    if not child:
        writer.enter(backward)
        writer.enter(writer.place("wait b0"))
        writer.publish()
        os._exit(0)
    os.waitpid(child, 0)
    found = CounterFile(tmp_path / "c").position()
    assert found is not None
    assert (found.place, found.pid) == (ELSEWHERE, os.getpid())
    writer.enter(backward)
    found = CounterFile(tmp_path / "c").position()
    assert found is not None
    assert found.place == "backward"


def test_a_thread_that_ends_the_step_between_is_survived(tmp_path: Path) -> None:
    writer = Counter(tmp_path / "c")
    place = writer.place("forward model")
    writer.enter(place)
    writer._begun.clear()  # what another thread has done of `stepped` when this one goes on
    writer.leave(place)
    writer.stepped(1)
    writer.enter(place)
    found = CounterFile(tmp_path / "c").position()
    assert found is not None
    assert (found.place, found.step) == ("forward model", 1)
