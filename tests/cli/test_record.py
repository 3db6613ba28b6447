"""The event file: what is written comes back, whatever happened to the writer."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from sgplan.grammar.diagnostics import Refused
from sgplan.interpreter import events
from sgplan.interpreter.record import Recorder, Tail, header, read_events

STEP = events.StepFinished(1, 0.5, 0.1, 0.01, 8, 2.5, False, 1, 0)


def recorder(path: Path, **options: object) -> Recorder:
    return Recorder(path, header(0, 2, "apply"), **options)  # pyright: ignore[reportArgumentType]


def fields(event: object) -> list[object]:
    return [getattr(event, name) for name in event.__dataclass_fields__]  # pyright: ignore


def write(path: Path, *written: object) -> None:
    out = recorder(path)
    for event in written:
        out.emit(type(event), *fields(event))
    assert out.close()


def test_events_come_back_in_order_with_their_time(tmp_path: Path) -> None:
    before = time.time_ns()
    write(tmp_path / "e", STEP, events.NoteAdded("a", "b"))
    records = list(read_events(tmp_path / "e"))
    assert [r.event for r in records] == [STEP, events.NoteAdded("a", "b")]
    assert before <= records[0].time_ns <= records[1].time_ns <= time.time_ns()


class Scalar:
    """Reads like a 0-dim tensor and remembers which thread read it."""

    thread: str | None = None

    def item(self) -> float:
        self.thread = threading.current_thread().name
        return 2.5


def test_a_tensor_is_read_by_the_recording_thread(tmp_path: Path) -> None:
    loss = Scalar()
    out = recorder(tmp_path / "e")
    out.emit(events.StepFinished, 1, 0.5, 0.1, 0.01, 8, loss, False, 1, 0)
    assert loss.thread is None
    out.close()
    assert loss.thread == "sgplan-recorder"
    assert next(read_events(tmp_path / "e")).event == STEP


def test_a_tensor_with_many_elements_is_no_loss(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    out = recorder(tmp_path / "e")
    out.emit(events.StepFinished, 1, 0.5, 0.1, 0.01, 8, torch.ones(3), False, 1, 0)
    out.emit(events.StepFinished, 2, 0.5, 0.1, 0.01, 8, torch.tensor(1.5), False, 1, 0)
    out.close()
    assert [r.event.loss for r in read_events(tmp_path / "e")] == [None, 1.5]


def test_a_full_queue_drops_and_says_how_many(tmp_path: Path) -> None:
    out = recorder(tmp_path / "e", limit=3)
    for _ in range(10):
        out.emit(events.NoteAdded, "a", "b")
    out.close()
    found = [r.event for r in read_events(tmp_path / "e")]
    assert found.count(events.NoteAdded("a", "b")) + found[-1].count == 10
    assert isinstance(found[-1], events.EventsDropped)


def test_an_event_that_cannot_be_written_is_counted(tmp_path: Path, capsys) -> None:
    out = recorder(tmp_path / "e")
    out.emit(Scalar, "a", "b")
    out.emit(events.NoteAdded, "a", "b")
    out.close()
    found = [r.event for r in read_events(tmp_path / "e")]
    assert found == [events.NoteAdded("a", "b"), events.EventsDropped(1)]
    assert "cannot be written" in capsys.readouterr().err


def test_a_name_that_is_no_text_is_written_readably(tmp_path: Path) -> None:
    write(tmp_path / "e", events.NoteAdded("file", os.fsdecode(b"caf\xe9")))
    assert next(read_events(tmp_path / "e")).event.text == "caf\\udce9"


def test_a_restart_appends_a_header(tmp_path: Path) -> None:
    write(tmp_path / "e", STEP)
    write(tmp_path / "e", STEP)
    assert [r.attempt for r in read_events(tmp_path / "e")] == [0, 1]


def test_a_restart_after_a_kill_cuts_the_half_record(tmp_path: Path) -> None:
    path = tmp_path / "e"
    write(path, STEP, STEP)
    os.truncate(path, path.stat().st_size - 3)
    write(path, STEP)
    assert [r.attempt for r in read_events(path)] == [0, 1]


def test_a_reader_sees_a_growing_file_bit_by_bit(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "e"
    write(whole, STEP, STEP, STEP)
    data, tail, found = whole.read_bytes(), Tail(path), []
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        found += tail.read()
    assert [r.event for r in found] == [STEP] * 3
    assert tail.verdict() is None


def test_a_cut_file_is_read_up_to_the_cut_and_named(tmp_path: Path) -> None:
    path = tmp_path / "e"
    write(path, STEP, STEP)
    os.truncate(path, path.stat().st_size - 3)
    tail = Tail(path)
    assert len(tail.read()) == 1
    verdict = tail.verdict()
    assert verdict is not None
    assert (verdict.code, verdict.severity) == ("SG1004", "warning")
    assert "cut off" in verdict.message


@pytest.mark.parametrize("garbage", [b"\xc1rest", b"\x05", b"\x93\xa1x\x01\x02", b"\x80"])
def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "e"
    write(path, STEP)
    with path.open("ab") as file:
        file.write(garbage)
    tail = Tail(path)
    assert [r.event for r in tail.read()] == [STEP]
    assert tail.read() == []
    verdict = tail.verdict()
    assert verdict is not None
    assert "unreadable from byte" in verdict.message


@pytest.mark.parametrize(
    "record",
    [
        ["compile_phases", 1, "model", 7],
        ["compile_phases", 1, "model", {"lower": "x"}],
        ["step_traced", 1, 3, [["wait b0", 1]]],
        ["step_traced", 1, 3, 5],
        ["graph_captured", 1, "model", "forward", ["digest"], "region", 3],
        ["memory_measured", 1, "much", 1, 0],
        ["diagnostic_raised", 1, {"code": "SG0001"}],
        [["note_added"], 1, "a", "b"],
        [{}, 1],
    ],
)
def test_a_field_of_another_type_is_damage(tmp_path: Path, record: list[Any]) -> None:
    path = tmp_path / "e"
    write(path, STEP)
    with path.open("ab") as file:
        file.write(msgpack.Packer().pack(record))
    tail = Tail(path)
    assert [r.event for r in tail.read()] == [STEP]
    assert tail.damage is not None


def test_a_map_that_no_map_can_be_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "e"
    write(path, STEP)
    with path.open("ab") as file:
        file.write(b"\x81\x91\x01\x01")  # a list as a key
    tail = Tail(path)
    assert [r.event for r in tail.read()] == [STEP]
    assert tail.damage is not None


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e"
    other = {**header(0, 1, "apply"), "sgplan_events": 99}
    path.write_bytes(cast(bytes, msgpack.packb(other)))
    with pytest.raises(Refused, match="version 99"):
        list(read_events(path))


def test_ranks_are_numbers() -> None:
    assert events.decode(["contract_agreed", 7, "model", "d", 0.5, [0, 2]])[1].ranks == [0, 2]
    for wrong in (["model", "d", 0.5], ["model", "d", 0.5, ["0"]], ["model", "d", 0.5, [0], 1]):
        with pytest.raises(ValueError, match="contract_agreed"):
            events.decode(["contract_agreed", 7, *wrong])


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    out = recorder(tmp_path / "e")
    pid = os.fork()
    if pid == 0:
        out.emit(events.NoteAdded, "child", "x")
        os._exit(0 if out.close() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    out.emit(events.NoteAdded, "parent", "x")
    out.close()
    assert [r.event.subject for r in read_events(tmp_path / "e")] == ["parent"]


def test_idle_work_is_called_and_may_fail_once(tmp_path: Path, capsys) -> None:
    calls = []

    def idle() -> None:
        calls.append(threading.current_thread().name)
        raise ValueError("no")

    out = recorder(tmp_path / "e", on_idle=idle)
    deadline = time.monotonic() + 5
    while not calls and time.monotonic() < deadline:
        time.sleep(0.05)
    out.close()
    assert calls == ["sgplan-recorder"]
    assert "idle task failed" in capsys.readouterr().err


def test_close_from_the_recording_thread_does_not_wait_for_itself(tmp_path: Path) -> None:
    done = threading.Event()

    def idle() -> None:
        out.emit(events.NoteAdded, "last", "words")
        out.close()
        done.set()

    out = recorder(tmp_path / "e", on_idle=idle)
    assert done.wait(5)
    assert [r.event.subject for r in read_events(tmp_path / "e")] == ["last"]
