"""`plan`, saved plans, `show` and `init` on a real job of two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sgplan.cli import main
from sgplan.planner import artefact
from tests.gloo.harness import BIN, Job, run_job

pytestmark = pytest.mark.gloo
TRAIN = Path(__file__).parent / "scripts" / "train.py"
EMPTY = "sgplan 1\n"
OBSERVER = "sgplan 1\ncapture { engine = as_written }\nsync { by = stock }\n"


def job(folder: Path, *verb: str, plan: str = EMPTY, **env: str) -> Job:
    return run_job(TRAIN, folder=folder, plan=plan, verb=verb, env=env, timeout=120)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("planned")
    return job(folder, "plan", "--json", "--detailed-exitcode", "-o", "saved.sgpx")


def test_a_plan_that_does_something_is_status_2(planned: Job) -> None:
    assert planned.returncode == 2
    assert not planned.orphans


def test_a_plan_that_only_watches_is_status_0(tmp_path: Path) -> None:
    assert job(tmp_path, "plan", "--detailed-exitcode", plan=OBSERVER).ok().returncode == 0


def test_json_is_alone_on_stdout(planned: Job) -> None:
    assert [rank["rank"] for rank in json.loads(planned.stdout)["ranks"]] == [0, 1]


def test_the_saved_plan_is_the_runs_own(planned: Job) -> None:
    assert planned.run is not None
    saved = artefact.read(planned.folder / "saved.sgpx")
    assert saved == artefact.read(planned.run / "run.sgpx")
    assert [part.program.rank for part in saved.parts] == [0, 1]


def test_a_saved_plan_is_shown(planned: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--rank", "1", str(planned.folder / "saved.sgpx")]) == 0
    shown = capsys.readouterr().out
    assert "program rank 1 of 2" in shown
    assert "reduce.start b0 axis=data" in shown


def test_a_run_is_shown_with_its_end(planned: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(planned.run)]) == 0
    shown = capsys.readouterr().out
    assert "program rank 0..1 of 2" in shown
    assert "sgplan: planned after" in shown
    assert main(["show", "--json", str(planned.run)]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["report"]["outcome"] == "planned"
    assert len(both["plan"]["ranks"]) == 2


def test_a_rank_that_is_not_there_is_named(
    planned: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "--rank", "7", str(planned.run)]) == 1
    assert "there is no rank 7 in it, only 0, 1" in capsys.readouterr().err


def apply_saved(planned: Job, folder: Path, **env: str) -> Job:
    saved = str(planned.folder / "saved.sgpx")
    command = [str(BIN / "sgplan"), "apply", "--run-dir", "run", saved, "--"]
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2", str(TRAIN)]
    return run_job([*command, *torchrun], folder=folder, env=env, timeout=120)


def test_a_saved_plan_applies_to_the_script_it_was_made_for(planned: Job, tmp_path: Path) -> None:
    assert "sgplan: done after" in apply_saved(planned, tmp_path).ok().stderr


def test_a_stale_plan_is_refused_once_with_what_differs(planned: Job, tmp_path: Path) -> None:
    refused = apply_saved(planned, tmp_path, WIDTH="3")
    assert refused.returncode == 1
    assert refused.stderr.count("`parameters` differs") == 1
    assert "sgplan: refused after" in refused.stderr


def test_a_starter_plan_passes_its_own_check(tmp_path: Path) -> None:
    command = [str(BIN / "sgplan"), "init", "--quiet", "-o", "new.sgplan", "--"]
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2", str(TRAIN)]
    made = run_job([*command, *torchrun], folder=tmp_path, timeout=120).ok()
    assert (made.stdout, made.stderr) == ("", "")
    assert main(["check", str(tmp_path / "new.sgplan")]) == 0
