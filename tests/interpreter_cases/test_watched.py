"""Runs that are looked at while they go on: who holds up whom, whose clock is where."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sgplan.interpreter.events import ClockAligned, StepTraced
from sgplan.runfolder import RunFolder
from sgplan.tui.player import Player
from sgplan.tui.rows import View, event_rows
from sgplan.tui.source import Source
from tests.gloo.harness import Job, run_job

from .kit import CASES

pytestmark = pytest.mark.gloo

PLAN = "sgplan 1\nsync { bucket = 32KiB  first_bucket = 16KiB }\n"


def run_folder(folder: Path) -> RunFolder | None:
    found = [path.parent for path in folder.rglob("plan.msgpack")]
    return RunFolder(found[0]) if found else None


def watched_until_it_hangs(folder: Path, patience: float) -> View:
    """What the dashboard knows once a rank is said to hold up others."""
    deadline = time.monotonic() + patience
    player: Player | None = None
    view: View | None = None
    while time.monotonic() < deadline:
        run = run_folder(folder)
        if player is None and run is not None:
            player = Player(Source(run))
        if player is not None:
            player.tick()
            view = player.view()
            if any(where.holds_up for where in view.where.values()):
                return view
        time.sleep(0.2)
    raise AssertionError(f"nobody is said to hold up others: {view and view.where}")


def seen_hanging(case: str, stopped: int, folder: Path) -> tuple[View, Job]:
    """What was seen while one of three ranks was stopped, and the job, which then went on."""

    def go() -> Job:
        script = CASES / "watched.py"
        return run_job(script, case, folder=folder, nproc=3, plan=PLAN, timeout=120)

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(go)
        view = watched_until_it_hangs(folder, 90)
        os.kill(view.state.ranks[stopped].pid, signal.SIGCONT)
        return view, job.result().ok()


def test_a_rank_that_is_stopped_is_named_and_every_rank_shows_where_it_is(tmp_path: Path) -> None:
    view, ended = seen_hanging("hang", 2, tmp_path)
    where = view.where
    assert where[2].holds_up == (0, 1)
    assert (where[2].doing, where[2].step) == ("script", 20)
    for rank in (0, 1):
        assert where[rank].waits_for == (2,)
        assert where[rank].doing == "wait b0"
        assert where[rank].step == 20
    assert ended.run is not None
    over = Player(Source(RunFolder(ended.run)))
    over.tick()
    assert [found.holds_up for found in over.view().where.values()] == [()] * 3
    assert over.state.step == 40
    # The ranks share a host and so a clock: what was estimated has to hold it.
    for rank in (1, 2):
        (clock,) = ended.of(ClockAligned, rank)
        assert abs(clock.offset_ns) <= clock.error_ns
        print(f"rank {rank}: {clock.offset_ns / 1e3:.0f} us, within {clock.error_ns / 1e3:.0f} us")
    traced = ended.of(StepTraced)
    names = {name for step in traced for name, _, _ in step.spans}
    assert {"forward model", "backward", "wait b0", "reduce b0", "update AdamW"} <= names
    assert len(traced) < 40


def test_a_rank_that_takes_no_part_in_the_reductions_is_not_blamed(tmp_path: Path) -> None:
    view, _ = seen_hanging("part", 1, tmp_path)
    assert (view.where[0].waits_for, view.where[0].unsure) == ((1,), ())
    assert view.where[1].holds_up == (0,)
    assert view.where[2].holds_up == ()


@pytest.mark.parametrize(("enforce", "status"), [("on", 3), ("off", 0)])
def test_a_level_that_is_breached_is_told_and_fails_the_run_where_it_is_enforced(
    tmp_path: Path, enforce: str, status: int
) -> None:
    plan = f"{PLAN}slo {{ step_p99 = 60ms  throughput = 1/s  enforce = {enforce} }}\n"
    job = run_job(CASES / "watched.py", "slow", folder=tmp_path, nproc=2, plan=plan, timeout=120)
    assert job.returncode == status, job.report()
    assert job.run is not None
    (breach,) = json.loads((job.run / "report.json").read_text())["slo_breaches"]
    assert (breach["level"], breach["limit"], breach["holds"]) == ("step_p99", 0.06, False)
    assert breach["measured"] > 0.06
    assert "step_p99 does not hold" in job.stderr
    player = Player(Source(RunFolder(job.run)))
    player.tick()
    assert player.state.levels["step_p99"].since_step == breach["step"]


@pytest.mark.slow
def test_what_eight_ranks_say_is_one_line_and_their_own_words_are_all_there(
    tmp_path: Path,
) -> None:
    """B123."""
    script = CASES / "watched.py"
    job = run_job(script, "warns", folder=tmp_path, nproc=8, plan=PLAN, timeout=280).ok()
    assert job.run is not None
    (fell,) = [line for line in job.stderr.splitlines() if "fell back" in line]
    assert "register_comm_hook" in fell
    assert fell.endswith("×8 ranks")
    log = (job.run / "log" / "stderr.log").read_text()
    for rank in range(8):
        for number in range(20):
            assert f"UserWarning: rank {rank} warns {number}\n" in log
    player = Player(Source(RunFolder(job.run)))
    player.tick()
    (row,) = [row for row in event_rows(player.view()) if "comm_hook" in row[-1].text]
    assert row[2].text == "x8"
