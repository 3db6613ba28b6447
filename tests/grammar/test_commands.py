"""`sgplan check`, `fmt` and `explain`, as a shell sees them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from sgplan.cli import main
from sgplan.grammar.codes import CODES

GOOD = "sgplan 1\n\nsync { bucket = 25MiB }\n"
BAD = "sgplan 1\n\nsync { buckt = 25MiB }\n"
LOOSE = "sgplan 1\nsync{bucket=25MiB}"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("plan.sgplan")


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_check_of_a_right_plan_says_ok(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(GOOD)
    assert main(["check", "plan.sgplan"]) == 0
    assert capsys.readouterr() == ("plan.sgplan: ok (1 block)\n", "")


def test_check_of_a_wrong_plan_says_why(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(BAD)
    assert main(["check", "plan.sgplan"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error[SG0200]: `sync` has no attribute `buckt`\n --> plan.sgplan:3:8\n")
    assert err.endswith("\nplan.sgplan: 1 error\n")


def test_check_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, GOOD)
    assert main(["check", "-"]) == 0
    assert "<stdin>: ok" in capsys.readouterr().out


def test_check_takes_world_and_set(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(GOOD)
    assert main(["check", "plan.sgplan", "--world", "3", "--set", "mesh.data=2"]) == 1
    assert "SG0301" in capsys.readouterr().err


def test_json_has_the_documented_fields(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(BAD)
    assert main(["check", "plan.sgplan", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    (diagnostic,) = answer.pop("diagnostics")
    assert answer == {"sgplan_check": 1, "source": "plan.sgplan", "ok": False}
    assert diagnostic == {
        "code": "SG0200",
        "severity": "error",
        "message": "`sync` has no attribute `buckt`",
        "primary": {
            "source": "plan.sgplan",
            "line": 3,
            "column": 8,
            "start": 17,
            "end": 22,
            "label": "",
        },
        "secondary": [],
        "notes": [],
        "help": "write `bucket`",
    }


def test_file_that_is_not_there_is_named(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "plan.sgplan"]) == 1
    assert "`plan.sgplan` cannot be read" in capsys.readouterr().err


def test_fmt_writes_in_place_and_then_rests(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(LOOSE)
    assert main(["fmt", "plan.sgplan"]) == 0
    assert plan.read_text() == GOOD
    assert main(["fmt", "plan.sgplan"]) == 0
    assert capsys.readouterr().out == "formatted plan.sgplan\n"


def test_fmt_check_names_and_does_not_write(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(LOOSE)
    assert main(["fmt", "--check", "plan.sgplan"]) == 1
    assert plan.read_text() == LOOSE
    assert capsys.readouterr().out == "would format plan.sgplan\n"


def test_fmt_diff_shows_the_changes(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(LOOSE)
    assert main(["fmt", "--diff", "plan.sgplan"]) == 1
    out = capsys.readouterr().out
    assert "-sync{bucket=25MiB}\n\\ No newline at end of file\n+\n+sync { bucket = 25MiB }\n" in out


def test_fmt_of_standard_input_goes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, LOOSE)
    assert main(["fmt", "-"]) == 0
    assert capsys.readouterr().out == GOOD


def test_fmt_leaves_a_broken_plan_alone(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text("sgplan 1\nsync {")
    assert main(["fmt", "plan.sgplan"]) == 1
    assert plan.read_text() == "sgplan 1\nsync {"
    assert "SG0104" in capsys.readouterr().err


@pytest.mark.parametrize("code", CODES)
def test_explain_knows_every_code(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code.lower()]) == 0
    assert capsys.readouterr().out.startswith(f"{code}: {CODES[code].title}\n")


def test_explain_without_a_code_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert [code for code in CODES if code not in out] == []


def test_explain_of_an_unknown_code_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "SG9999"]) == 1
    assert "no code `SG9999`" in capsys.readouterr().err
