"""The runs of this user: entered when they begin, listed from anywhere, forgotten when deleted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sgplan import runs
from sgplan.grammar.planfile import PlanFile
from sgplan.runfolder import PLAN, RunFolder, create, shown


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory, and a working directory without runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "state" / "sgplan" / "runs"


def run_at(path: Path, began: float) -> RunFolder:
    path.mkdir(parents=True, exist_ok=True)
    (path / PLAN).write_bytes(b"")
    os.utime(path / PLAN, (began, began))
    return RunFolder(path.resolve())


def names(found: list[RunFolder]) -> list[str]:
    return [run.path.name for run in found]


@pytest.mark.usefixtures("state")
def test_runs_of_the_directory_and_of_the_machine_are_one_list(tmp_path: Path) -> None:
    for name, began in (("old", 10.0), ("new", 30.0)):
        runs.remember(run_at(tmp_path / "elsewhere" / name, began), began)
    mine = run_at(Path(".sgplan/runs/mine"), 20.0)
    runs.remember(mine, 20.0)  # known in both ways, listed once
    run_at(Path(".sgplan/runs/copied"), 5.0)
    assert names(runs.recent()) == ["new", "mine", "old", "copied"]
    assert names(runs.here()) == ["mine", "copied"]


def test_a_deleted_run_is_forgotten(state: Path, tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", 1.0)
    runs.remember(run, 1.0)
    shutil.rmtree(run.path)
    assert runs.recent() == []
    assert list(state.iterdir()) == []


def test_a_run_of_another_host_is_left_out_and_kept(state: Path, tmp_path: Path) -> None:
    """A home on a network file system holds what several machines have run."""
    runs.remember(run_at(tmp_path / "run", 1.0), 1.0)
    (file,) = state.iterdir()
    entry = json.loads(file.read_text())
    file.write_text(json.dumps(entry | {"host": "other", "folder": "/local/of/other/run"}))
    assert runs.recent() == []
    assert file.exists()


def test_a_folder_that_is_used_again_has_one_entry(state: Path, tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", 1.0)
    for began in (1.0, 2.0):
        runs.remember(run, began)
    assert len(list(state.iterdir())) == 1


def test_so_many_are_remembered(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "KEPT", 3)
    for number in range(5):
        runs.remember(run_at(tmp_path / str(number), float(number)), float(number))
        for file in state.iterdir():
            entry = json.loads(file.read_text())
            os.utime(file, (entry["began"], entry["began"]))
    assert names(runs.recent()) == ["4", "3", "2"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"folder": 1, "began": 1, "host": ""}'])
def test_what_is_no_entry_is_passed_over(state: Path, tmp_path: Path, content: str) -> None:
    runs.remember(run_at(tmp_path / "run", 1.0), 1.0)
    (state / "odd.json").write_text(content)
    assert names(runs.recent()) == ["run"]


def test_a_state_directory_that_cannot_be_made_is_no_error(tmp_path: Path, state: Path) -> None:
    state.parent.parent.write_text("a file is in the way")
    runs.remember(run_at(tmp_path / "run", 1.0), 1.0)
    run_at(Path(".sgplan/runs/mine"), 1.0)
    assert names(runs.recent()) == ["mine"]


@pytest.mark.usefixtures("state")
def test_a_user_without_a_home_has_the_runs_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    runs.remember(run_at(tmp_path / "run", 1.0), 1.0)
    assert runs.recent() == []


@pytest.mark.usefixtures("state")
def test_a_path_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shown(Path.cwd() / ".sgplan/runs") == ".sgplan/runs"
    assert shown(tmp_path / "jobs/run") == "~/jobs/run"
    assert shown(Path("/srv/run")) == "/srv/run"


@pytest.mark.parametrize(("mode", "entered"), [("apply", 1), ("plan", 1), ("verify", 0)])
def test_a_run_is_entered_when_it_begins(state: Path, mode: str, entered: int) -> None:
    """Jobs of a verification are parts of it."""
    from sgplan.execution import Request, execute

    plan = PlanFile("p.sgplan", "sgplan 1\n")
    command = (sys.executable, "-c", "")
    done = execute(Request(mode, plan, command, progress="silent"))  # type: ignore[arg-type]
    assert done.child == 0
    assert len(list(state.iterdir()) if state.exists() else []) == entered


@pytest.mark.parametrize(
    "again", ["", "os.makedirs(run + '/log'); open(run + '/plan.msgpack', 'w')"]
)
@pytest.mark.usefixtures("state")
def test_a_folder_that_is_deleted_while_the_command_runs_is_no_fault_of_the_script(
    again: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is one that another run has made in its place written to."""
    from sgplan import conclude
    from sgplan.execution import Request, execute
    from sgplan.verdict import judge_apply

    code = f"import os, shutil; run = os.environ['SGPLAN_RUN']; shutil.rmtree(run); {again}"
    plan = PlanFile("p.sgplan", "sgplan 1\n")
    done = execute(Request("apply", plan, (sys.executable, "-c", code), progress="silent"))
    outcome = judge_apply(done)
    assert conclude.conclude(done, outcome) is None
    conclude.tell(done, outcome)
    told = capsys.readouterr().err
    assert "SG0906" in told
    assert f"run folder    {done.folder.shown}, deleted" in told
    assert not (done.folder.path / "report.json").exists()


def test_top_shows_the_runs_of_the_machine_where_the_directory_has_none(
    state: Path, tmp_path: Path
) -> None:
    """By the path of the command line, in a process that draws and tells what is on the screen."""
    runs.remember(run_at(tmp_path / "elsewhere" / "run", 1.0), 1.0)
    watch = """
import os, sys
from textual.app import App
from sgplan import cli

os.isatty = lambda descriptor: True

async def auto(pilot):
    await pilot.pause()
    strips = pilot.app.screen._compositor.render_strips()
    print(*("".join(s.text for s in strip) for strip in strips), sep="\\n", file=sys.stderr)
    pilot.app.exit()

run = App.run
App.run = lambda app: run(app, headless=True, size=(120, 30), auto_pilot=auto)
cli.main(["top"])
"""
    done = subprocess.run(
        [sys.executable, "-c", watch], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(state.parent.parent), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert "enter opens" in done.stderr
    assert "~/elsewhere" in done.stderr


@pytest.mark.usefixtures("state")
def test_a_folder_that_was_made_lies_where_it_is_looked_for() -> None:
    run = create(None, "p")
    (run.path / PLAN).write_bytes(b"")
    assert runs.here() == [run]
