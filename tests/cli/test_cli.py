"""The command line from outside: exit status, one clear line, and what is not imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sgplan.cli import COMMANDS, LATER, main

SGPLAN = str(Path(sys.executable).parent / "sgplan")
EMPTY = "sgplan 1\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.sgplan").write_text(EMPTY)
    return tmp_path


def sgplan(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SGPLAN, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", LATER)
def test_a_command_that_is_not_built_says_so(name: str, capsys) -> None:
    assert main([name, "--whatever", "x"]) == 1
    assert capsys.readouterr().err == (
        f"sgplan: error: `sgplan {name}` ({LATER[name]}) is not built yet\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["apply", "plan.sgplan"], "no command given"),
        (["apply", "plan.sgplan", "--"], "no command given"),
        (["plan", "plan.sgplan", "--", "nosuchprogram"], "`nosuchprogram` cannot be found"),
        (["init", "--", "./plan.sgplan"], "`./plan.sgplan` cannot be found or is not executable"),
        (["apply", "none.sgplan", "--", "true"], "`none.sgplan` cannot be read"),
        (["apply", ".", "--", "true"], "`.` cannot be read"),
        (["plan", "-o", "no/x", "plan.sgplan", "--", "true"], "there is no folder `no`"),
        (["init", "-o", "no/x", "--", "true"], "there is no folder `no`"),
        (["plan", "-o", "taken", "plan.sgplan", "--", "true"], "it is a folder"),
        (["plan", "plan.sgplan", "true"], "`true` is not read: write `--` before the command"),
        (["init", "true"], "`true` is not read: write `--` before the command"),
        (["show", "none"], "`none` is neither a run folder nor a .sgpx file"),
        (["init", "-o", "plan.sgplan", "--", "true"], "exists already"),
        (["apply", "--run-dir", "taken", "plan.sgplan", "--", "true"], "already holds a run"),
    ],
)
def test_a_mistake_costs_one_line_and_status_1(
    here: Path, arguments: list[str], said: str, capsys
) -> None:
    (here / "taken").mkdir()
    (here / "taken" / "events-0.msgpack").touch()
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [[], ["apply"], ["check", "--wor", "3", "a"], ["check", "a", "b"]]
)
def test_wrong_usage_is_status_1_for_2_is_an_answer(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 1
    assert "usage: sgplan" in capsys.readouterr().err


def test_a_misspelt_command_is_named_with_the_nearest(capsys) -> None:
    assert main(["chek", "plan.sgplan"]) == 1
    assert capsys.readouterr().err == "sgplan: error: there is no command `chek`; write `check`\n"


def test_nothing_starts_under_a_wrong_plan(here: Path, capsys) -> None:
    (here / "plan.sgplan").write_text("sgplan 1\nsync { bucket = 25 }\nmesh { pip = 1 }\n")
    assert main(["apply", "plan.sgplan", "--", "touch", "started"]) == 1
    err = capsys.readouterr().err
    assert err.count("error[SG") == 2
    assert "plan.sgplan:2:17" in err
    assert not (here / "started").exists()
    assert not (here / ".sgplan").exists()


def test_a_set_is_checked_and_recorded(here: Path, capsys) -> None:
    assert main(["apply", "--set", "sync.bucket=4", "plan.sgplan", "--", "true"]) == 1
    assert "--set:1:13" in capsys.readouterr().err
    main(["apply", "--set", "sync.bucket=4MiB", "--run-dir", "r", "plan.sgplan", "--", "true"])
    assert (here / "r" / "plan.set").read_text() == "sync.bucket=4MiB"


def test_a_damaged_saved_plan_is_refused(here: Path, capsys) -> None:
    (here / "run.sgpx").write_bytes(b"sgpx\x01" + bytes(40))
    assert main(["apply", "run.sgpx", "--", "true"]) == 1
    assert "error[SG1001]" in capsys.readouterr().err
    assert main(["show", "run.sgpx"]) == 1


def test_a_run_without_python_fails_and_says_why(here: Path) -> None:
    done = sgplan("apply", "plan.sgplan", "--", "echo", "hello", cwd=here)
    assert (done.returncode, done.stdout) == (1, "hello\n")
    assert "error[SG0901]: no step ran under the plan: the command started no Python" in done.stderr
    (report,) = here.glob(".sgplan/runs/*-plan/report.json")
    assert json.loads(report.read_text())["outcome"] == "no_step"


def test_an_isolated_python_is_named(here: Path) -> None:
    done = sgplan("apply", "plan.sgplan", "--", sys.executable, "-I", "-c", "pass", cwd=here)
    assert "runs Python isolated (`-I`)" in done.stderr
    assert "= help: start Python without `-I`" in done.stderr


def test_quiet_says_failures_only(here: Path) -> None:
    done = sgplan("apply", "--quiet", "plan.sgplan", "--", "sh", "-c", "exit 7", cwd=here)
    assert done.returncode == 7
    assert done.stderr.startswith("sgplan: the command ended with status 7 before its first step")
    assert done.stderr.count("\n") == 1


def test_the_output_of_a_planned_command_is_not_ours(here: Path) -> None:
    done = sgplan("plan", "plan.sgplan", "--", "echo", "hello", cwd=here)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("hello\n")
    assert "nothing was planned: the command started no Python" in done.stderr


def test_two_runs_in_one_second_have_two_folders(here: Path, capsys) -> None:
    for _ in range(2):
        main(["apply", "plan.sgplan", "--", "true"])
    assert len(list((here / ".sgplan" / "runs").iterdir())) == 2


def test_a_recorded_run_is_shown_without_its_report(here: Path, capsys) -> None:
    main(["apply", "--run-dir", "r", "plan.sgplan", "--", "true"])
    (here / "r" / "report.json").unlink()
    capsys.readouterr()
    assert main(["show", "r"]) == 0
    assert "no end recorded: it still runs, or was killed" in capsys.readouterr().out


def buffered() -> dict[str, str]:
    """An environment in which output is kept until the end, as it is by default."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_a_damaged_plan_of_a_run_is_said(here: Path, capsys) -> None:
    main(["apply", "--run-dir", "r", "plan.sgplan", "--", "true"])
    for data in (b"", b"\x81\xa4plan\x05", b"\x80", b"\xc1"):
        (here / "r" / "plan.msgpack").write_bytes(data)
        capsys.readouterr()
        assert main(["show", "r"]) == 1
        assert "plan.msgpack is damaged, or of another version" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", ["explain", "explain SG0229", "check --json p", "--help", "--version"]
)
def test_a_reader_that_leaves_costs_no_traceback(here: Path, arguments: str) -> None:
    (here / "p").write_text("sgplan 1\nsync { büc = 1 }\n")
    done = subprocess.run(
        ["bash", "-c", f"{SGPLAN} {arguments} | true"],
        cwd=here, capture_output=True, text=True, timeout=60, check=False, env=buffered(),
    )  # fmt: skip
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", ["explain SG0229", "check --json p", "fmt --diff p"])
def test_a_terminal_without_a_character_gets_an_escape(here: Path, arguments: str) -> None:
    (here / "p").write_text("sgplan 1\n# é\nsync{}\n")
    done = subprocess.run(
        [SGPLAN, *arguments.split()],
        cwd=here, capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.stderr == b""
    assert done.stdout.isascii()


@pytest.mark.parametrize("arguments", ["check plan.sgplan", "--help", "--version"])
def test_output_that_cannot_be_written_costs_one_line(here: Path, arguments: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{SGPLAN} {arguments} > /dev/full"],
        cwd=here, capture_output=True, text=True, timeout=60, check=False, env=buffered(),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "sgplan: error: [Errno 28] No space left on device\n"


def test_a_fault_of_ours_says_so(here: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgplan.grammar.check.parse", lambda *_: 1 / 0)
    assert main(["check", "plan.sgplan"]) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert err.endswith("sgplan: internal error: a fault of sgplan, not of the plan\n")


def test_every_command_has_a_help(capsys) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        assert left.value.code == 0
        assert f"usage: sgplan {name}" in capsys.readouterr().out


def imported(*arguments: str, cwd: Path) -> set[str]:
    """Top-level packages that a command loads."""
    code = (
        "import sys; from sgplan.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["check", "plan.sgplan"], ["fmt", "plan.sgplan"], ["explain"]],
)
def test_light_commands_load_no_torch_and_no_rich(here: Path, arguments: list[str]) -> None:
    assert not imported(*arguments, cwd=here) & {"torch", "rich", "textual", "numpy"}


@pytest.mark.parametrize("name", ["apply", "plan"])
def test_the_parent_of_a_job_loads_no_torch(here: Path, name: str) -> None:
    loaded = imported(name, "plan.sgplan", "--", "true", cwd=here)
    assert not loaded & {"torch", "textual", "numpy"}


@pytest.mark.parametrize("arguments", [["--version"], ["check", "plan.sgplan"]])
def test_light_commands_start_at_once(here: Path, arguments: list[str]) -> None:
    # As installed: with byte code, which the first of the runs writes.
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(here / "bytecode")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def seconds() -> float:
        """CPU time: a busy machine does not count."""
        before = os.times()
        subprocess.run([SGPLAN, *arguments], cwd=here, env=environ, timeout=60, check=True)
        after = os.times()
        return (
            after.children_user
            + after.children_system
            - (before.children_user + before.children_system)
        )

    assert min(seconds() for _ in range(4)) < 0.3


def test_doctor_names_versions_and_what_is_untested(capsys) -> None:
    assert main(["doctor", "--json"]) in (0, 1)
    facts = {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)}
    assert facts["torch"]["value"].startswith("2.")
    assert facts["cuda"]["why"].startswith("untested")
    assert "not on CUDA, NCCL or another torch" in facts["tested"]["value"]
    assert facts["injection"]["level"] == "ok"
    assert {"python", "lark", "backends", "compiler", "/dev/shm", "cores"} <= set(facts)
