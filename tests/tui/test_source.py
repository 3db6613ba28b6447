"""What a run folder holds beside its events, of runs that go on and that are over."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sgplan.interpreter.counter import _BIRTH, _BIRTH_AT
from sgplan.runfolder import RunFolder
from sgplan.tui.source import Source

from .build import SECOND, attached, counter, folder


def test_a_rank_of_a_dead_process_is_found(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)))
    counter(run, 0, "backward", "wait b0")
    source = Source(run, alive=lambda pid, born: False)
    (found,) = source.positions().values()
    assert (found.place, found.pid, found.host) == ("wait b0", os.getpid(), socket.gethostname())
    assert source.dead({0: found}) == {0}
    assert source.end({0: found}) is not None
    assert Source(run).end({0: found}) is None


def test_a_number_that_no_process_can_have_is_of_none(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)))
    counter(run, 0)
    source = Source(run)
    (found,) = source.positions().values()
    assert source.dead({0: replace(found, pid=2**32 - 1)}) == {0}


@pytest.mark.parametrize("place", [0, 15], ids=["born later", "of another boot"])
def test_a_process_that_has_the_number_of_a_dead_one_is_not_it(tmp_path: Path, place: int) -> None:
    """The machine was started anew: ids begin from below again."""
    run = folder(tmp_path, (0, 0.0, attached(0)))
    counter(run, 0)
    path = run.path / "counter-0.bin"
    assert Source(run).end(Source(run).positions()) is None
    with path.open("r+b") as file:
        file.seek(_BIRTH_AT + place)
        byte = file.read(1)
        file.seek(_BIRTH_AT + place)
        file.write(bytes([byte[0] ^ 1]))
    source = Source(run)
    positions = source.positions()
    assert source.dead(positions) == {0}
    assert source.end(positions) is not None


def test_a_counter_that_tells_no_birth_is_believed_by_its_number(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)))
    counter(run, 0)
    path = run.path / "counter-0.bin"
    with path.open("r+b") as file:
        file.seek(_BIRTH_AT)
        file.write(bytes(_BIRTH.size))
    source = Source(run)
    assert source.dead(source.positions()) == set()


def test_a_rank_of_another_host_is_not_called_dead(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)))
    counter(run, 0)
    path = run.path / "counter-0.bin"
    path.write_bytes(path.read_bytes().replace(socket.gethostname().encode(), b"elsewhere", 1))
    source = Source(run, alive=lambda pid, born: False)
    positions = source.positions()
    assert source.dead(positions) == set()
    assert source.end(positions) is None


def test_a_rank_that_was_restarted_is_seen_in_its_new_counter(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)))
    counter(run, 0, "backward")
    source = Source(run)
    assert source.positions()[0].place == "backward"
    counter(run, 0, "forward model")
    assert source.positions()[0].place == "forward model"


def test_what_is_no_counter_and_no_report_is_named(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)))
    (run.path / "counter-0.bin").write_bytes(b"no counter")
    (run.path / "report.json").write_text("{")
    source = Source(run)
    assert source.positions() == {}
    assert source.end({}) is not None
    assert "no program counter" in source.faults[0]
    assert "report.json cannot be read" in source.faults[1]
    source.positions()
    assert len(source.faults) == 2


def test_a_folder_that_was_deleted_is_named(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", (0, 0.0, attached(0)))
    counter(run, 0)
    source = Source(run)
    source.positions()
    shutil.rmtree(run.path)
    assert set(source.positions()) == {0}  # it is mapped
    assert source.faults == ["the run folder was deleted"]


def test_a_report_tells_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    report = {"started": "2026-01-02T03:04:05+0100", "seconds": 7.5, "why": "exit status 3"}
    (path / "report.json").write_text(json.dumps(report))
    end = Source(RunFolder(path)).end({})
    assert end is not None
    assert (end.time_ns, end.why) == (1767319445 * SECOND + SECOND * 15 // 2, "exit status 3")
