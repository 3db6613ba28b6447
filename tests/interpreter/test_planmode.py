from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from sgplan.interpreter import events, meeting, planmode
from sgplan.interpreter.planmode import PlanMode

from .world import Kept, Left, rank_under, root_of

pytestmark = pytest.mark.usefixtures("patched")


def planning(folder: Path, body: str = "", world: int = 1) -> tuple[PlanMode, Kept]:
    rank, kept = rank_under(folder, body, mode="plan", world=world)
    rank.on_idle = lambda: None
    return PlanMode(rank), kept


def test_saving_is_blocked_and_said_once(tmp_path: Path) -> None:
    mode, kept = planning(tmp_path)
    mode.install()
    for _ in range(2):
        torch.save({"a": 1}, tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()
    assert [event.subject for event in kept.of(events.NoteAdded)] == ["side effects"]


def test_finishing_writes_the_part_and_leaves_with_success(tmp_path: Path) -> None:
    mode, kept = planning(tmp_path)
    model = nn.Linear(3, 2)
    mode._rank.add_root(root_of(model))
    with pytest.raises(Left) as left:
        mode.finish()
    assert left.value.args == (0,)
    assert (tmp_path / "program-0.msgpack").exists()
    (end,) = kept.of(events.ScriptEnded)
    assert (end.how, end.steps) == ("planned", 0)


def test_a_model_block_that_names_nothing_refuses_the_plan(tmp_path: Path) -> None:
    mode, kept = planning(tmp_path, 'model "net" { is = "train:Net" }')
    model = nn.Linear(3, 2)
    mode._rank.add_root(root_of(model))
    with pytest.raises(Left):
        mode.finish()
    assert kept.codes() == ["SG0507"]
    assert kept.of(events.ScriptEnded)[0].how == "refused"


def test_a_rank_waits_for_the_others_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "MEETING", timedelta(seconds=0.2))
    mode, _ = planning(tmp_path, world=2)
    mode._rank.peers.store = store = HashStore()
    mode._meeting.arrive()
    assert mode._meeting.arrived() == 1
    store.set("sgplan/planned/1", "1")
    assert mode._meeting.arrived() == 2
    mode._meeting.arrive()


def test_a_straggler_is_ended_when_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planmode, "STRAGGLER", 0.0)
    mode, kept = planning(tmp_path, world=2)
    mode._rank.open()
    mode._rank.peers.store = store = HashStore()
    mode.on_idle()
    assert mode._others_done_since is None
    store.set("sgplan/planned/1", "1")
    mode.on_idle()
    assert mode._others_done_since is not None
    with pytest.raises(Left):
        mode.on_idle()
    assert kept.of(events.ScriptEnded)[0].detail == "reached no backward"


def test_a_compiling_rank_is_no_straggler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planmode, "STRAGGLER", 0.0)
    mode, _ = planning(tmp_path, world=2)
    mode._rank.peers.store = store = HashStore()
    store.set("sgplan/planned/1", "1")
    mode._rank.capturing = True
    for _ in range(3):
        mode.on_idle()
    assert mode._others_done_since is None
