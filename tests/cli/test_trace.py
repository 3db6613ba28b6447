"""`sgplan trace`: the run as Perfetto reads it, all ranks on one clock."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from sgplan import cli
from sgplan.interpreter import events
from sgplan.interpreter.record import Record
from sgplan.reader import Heard, Reader
from sgplan.trace import COLLECTIVES, PROGRAM, STEPS, trace_of
from tests.tui.build import BEGIN, SECOND, attached, folder, heard_of, miss, step

MS = 1_000_000
RUNS = Path(__file__).parent.parent / "tui" / "runs"


def traced(*said: tuple[int, float, Any]) -> list[dict[str, Any]]:
    return trace_of(heard_of(*said))["traceEvents"]


def of(found: list[dict[str, Any]], phase: str, **wanted: Any) -> list[dict[str, Any]]:
    fits = [each for each in found if each["ph"] == phase]
    return [each for each in fits if all(each.get(k) == v for k, v in wanted.items())]


def spans(*names: str, at: float) -> events.StepTraced:
    """A step whose places each took a tenth of a second."""
    begin = BEGIN + round(at * SECOND)
    return events.StepTraced(1, [(name, begin, begin + SECOND // 10) for name in names])


def test_times_are_rank_0s_in_microseconds(tmp_path: Path) -> None:
    """Also of what a rank has said before it knew how far its clock is off."""
    run = folder(
        tmp_path,
        (0, 0.0, attached(0)),
        (1, 0.0, attached(1)),
        (1, 0.1, miss()),
        (1, 0.5, events.ClockAligned(2 * SECOND, 40_000)),
        (1, 1.0, step(1, 0.25)),
        (1, 1.0, spans("forward model", at=0.8)),
    )
    found = trace_of(Reader(run.path).records())["traceEvents"]
    (mark,) = of(found, "i")
    assert mark["ts"] == pytest.approx(BEGIN / 1e3 + 2.1e6)
    (forward,) = of(found, "X", tid=PROGRAM)
    assert forward["ts"] == pytest.approx(BEGIN / 1e3 + 2.8e6)
    (span,) = of(found, "X", tid=STEPS)
    assert span["name"] == "step 1"
    assert span["ts"] == pytest.approx(BEGIN / 1e3 + 2.75e6)
    assert span["dur"] == pytest.approx(0.25e6)
    names = [each["args"]["name"] for each in of(found, "M", name="process_name")]
    assert names == ["rank 0", "rank 1 (clock within 40 us)"]


def test_a_reduction_is_linked_from_who_began_it_first_to_all_others() -> None:
    said = [(rank, 0.0, attached(rank, 3)) for rank in range(3)]
    said += [
        (0, 3.0, spans("wait b0", "reduce b0", at=2.0)),
        (1, 3.0, spans("reduce b0", at=1.5)),
        (2, 3.0, spans("reduce b0", at=2.5)),
    ]
    found = traced(*said)
    flow = [each for each in found if each.get("cat") == "collective"]
    assert [(each["ph"], each["pid"]) for each in flow] == [("s", 1), ("t", 0), ("f", 2)]
    assert len({(each["id"], each["name"]) for each in flow}) == 1
    for each in flow:  # an arrow is bound to the slice that it begins or ends in
        (slice_,) = of(found, "X", pid=each["pid"], tid=COLLECTIVES)
        assert slice_["ts"] <= each["ts"] <= slice_["ts"] + slice_["dur"]
    assert [each["name"] for each in of(found, "X", tid=PROGRAM)] == ["wait b0"]


def test_a_reduction_of_one_rank_has_no_arrow() -> None:
    found = traced((0, 0.0, attached(0, 1)), (0, 3.0, spans("reduce b0", at=2.0)))
    assert not any(each.get("cat") == "collective" for each in found)


def test_what_happened_is_marked() -> None:
    found = traced(
        (0, 0.0, attached(world=1)),
        (0, 1.0, miss("32", "17")),
        (-1, 2.0, events.SloBreached("step_p99", 0.1, 0.2, 1)),
        (0, 3.0, events.ScriptEnded("raised", "ValueError", 1, 0)),
    )
    assert [mark["name"] for mark in of(found, "i")] == [
        "guard miss: input[0].shape[0] 32 -> 17",
        "slo step_p99 breached",
        "script raised",
    ]
    assert not any(each["pid"] < 0 for each in found)


def test_what_cannot_be_read_is_named_beside_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", (0, 0.0, attached(world=1)), (0, 1.0, step(1)))
    with (run.path / "events-0.msgpack").open("ab") as file:
        file.write(b"\xc1")
    assert cli.main(["trace", str(run.path), "-o", "-"]) == 0
    told = capsys.readouterr()
    assert "step 1" in told.out
    assert "is damaged: unreadable from byte" in told.err


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", (0, 0.0, attached(world=1)))
    assert cli.main(["trace", str(run.path), "-o", str(tmp_path / "no" / "trace.json")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def reductions(*found: tuple[str, int, int]) -> events.StepTraced:
    """A step with these, their begin and end in milliseconds."""
    return events.StepTraced(3, [(name, MS * begin, MS * end) for name, begin, end in found])


def started(*said: tuple[int, Any, int]) -> list[dict[str, Any]]:
    """The trace of records with their rank and attempt."""
    records = (
        Heard(rank, 20 * MS, Record(20 * MS, event, attempt)) for rank, event, attempt in said
    )
    return trace_of(records)["traceEvents"]


def slices(found: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    by_track: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for each in found:
        if each["ph"] == "X":
            by_track[each["pid"], each["tid"]].append(each)
    return by_track


@pytest.mark.parametrize("run", ["healthy", "slow", "storm", "hang", "fails"])
def test_a_recorded_run_is_json_whose_slices_nest(run: str, tmp_path: Path) -> None:
    assert cli.main(["trace", str(RUNS / run), "-o", str(tmp_path / "t.json")]) == 0

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    text = (tmp_path / "t.json").read_text()
    found = json.loads(text, parse_constant=refuse)["traceEvents"]
    by_track = slices(found)
    for track in by_track.values():
        open_until: list[float] = []
        for each in sorted(track, key=lambda each: (each["ts"], -each["dur"])):
            end = each["ts"] + each["dur"]
            while open_until and open_until[-1] <= each["ts"]:
                open_until.pop()
            assert not open_until or end <= open_until[-1], each
            open_until.append(end)
    assert {each["pid"] for each in found} == {0, 1, 2, 3}
    for flow in (each for each in found if each["ph"] in "stf"):
        begins = {each["ts"] for each in by_track[flow["pid"], flow["tid"]]}
        assert flow["ts"] in begins


def test_reductions_in_flight_together_are_beside_each_other() -> None:
    found = started(
        (0, reductions(("reduce b0", 1, 5), ("reduce b1", 2, 6), ("reduce b2", 5, 7)), 0)
    )
    assert sorted(len(track) for track in slices(found).values()) == [1, 2]


def test_an_arrow_goes_through_the_ranks_of_one_reduction() -> None:
    step = reductions(
        ("reduce b0", 1, 2), ("reduce b0", 3, 4)
    )  # gradients reduced twice in one step
    late = reductions(("reduce b0", 11, 12), ("reduce b0", 13, 14))
    found = started((0, step, 0), (1, step, 0), (0, late, 1), (1, late, 1))
    arrows: dict[int, list[tuple[str, int, float]]] = defaultdict(list)
    for each in found:
        if each["ph"] in "stf":
            arrows[each["id"]].append((each["ph"], each["pid"], each["ts"] / 1000))
    assert sorted(arrows.values()) == [
        [("s", 0, at), ("f", 1, at)] for at in (1.0, 3.0, 11.0, 13.0)
    ]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stays_readable(loss: float) -> None:
    found = started((0, events.StepFinished(1, 0.01, 0.0, 0.0, 8, loss, False, 1, 0), 0))
    text = json.dumps(found, allow_nan=False)
    assert f'"loss": "{loss}"' in text
    assert not any(each["ph"] == "C" for each in found)
