"""The saved plan: written whole, read whole or refused, compared digest by digest."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgplan.grammar.diagnostics import Refused
from sgplan.planner import artefact
from sgplan.planner.facts import Facts
from sgplan.planner.pipeline import lower

from .build import facts, parameter, plan_file, root

PLAN = plan_file("sync { bucket = 1KiB  first_bucket = 1KiB }")


def part(found: Facts) -> artefact.Part:
    return artefact.Part(lower(PLAN.resolve(found.world, "cpu"), found), found)


SAVED = artefact.make(PLAN, (part(facts(rank=1)), part(facts(rank=0))))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sgpx") / "run.sgpx"
    artefact.write(path, SAVED)
    return path.read_bytes()


def refusal(path: Path, data: bytes) -> tuple[str, str]:
    path.write_bytes(data)
    with pytest.raises(Refused) as caught:
        artefact.read(path)
    found = caught.value.diagnostics[0]
    return found.code, found.notes[0]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    artefact.write(tmp_path / "run.sgpx", SAVED)
    assert artefact.read(tmp_path / "run.sgpx") == SAVED
    assert [path.name for path in tmp_path.iterdir()] == ["run.sgpx"]


def test_parts_are_in_rank_order() -> None:
    assert [part.program.rank for part in SAVED.parts] == [0, 1]


def test_a_written_file_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "run.sgpx"
    path.write_text("old")
    artefact.write(path, SAVED)
    assert artefact.read(path).plan == PLAN


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_any_changed_byte_is_refused(tmp_path: Path, written: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(written) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda v: v != written[place]))
    changed = written[:place] + bytes([value]) + written[place + 1 :]
    assert refusal(tmp_path / "x.sgpx", changed)[0] == "SG1001"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data())
def test_any_cut_file_is_refused(tmp_path: Path, written: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(written) - 1))
    assert refusal(tmp_path / "x.sgpx", written[:end])[0] == "SG1001"


def test_another_file_is_named_as_such(tmp_path: Path) -> None:
    code, note = refusal(tmp_path / "x.sgpx", b"sgplan 1\n")
    assert (code, note) == ("SG1001", "it does not begin as a `.sgpx` file does")


def test_another_version_is_named(tmp_path: Path, written: bytes) -> None:
    code, note = refusal(tmp_path / "x.sgpx", written[:4] + bytes([9]) + written[5:])
    assert (code, note) == ("SG1001", "it has format version 9, this sgplan reads 1")


def test_a_part_of_the_run_folder_comes_back(tmp_path: Path) -> None:
    one = SAVED.parts[0]
    path = tmp_path / "program-0.msgpack"
    packed = msgpack.packb(artefact.encode_part(one.program, one.facts))
    assert packed is not None
    path.write_bytes(packed)
    assert artefact.read_part(path) == one


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", msgpack.packb({"program": {}})])
def test_a_damaged_part_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "program-0.msgpack"
    path.write_bytes(data)
    with pytest.raises(Refused) as caught:
        artefact.read_part(path)
    assert caught.value.diagnostics[0].code == "SG1001"


def differing(other: Facts) -> list[str]:
    fresh = part(other)
    found = artefact.digests_of(fresh.program, fresh.facts)
    problems = artefact.differences(SAVED.digests, other.rank, found)
    assert {problem.code for problem in problems} <= {"SG1002"}
    return [problem.message.split("`")[1] for problem in problems]


def test_the_same_run_differs_in_nothing() -> None:
    assert differing(facts(rank=1)) == []


def test_another_parameter_differs_in_parameters_and_contract() -> None:
    wider = root(parameters=[parameter("w", 9)])
    assert differing(facts(wider)) == ["parameters", "contract"]


def test_another_graph_differs_in_graphs_only() -> None:
    assert differing(facts(root(graphs=()))) == ["graphs"]


def test_another_world_differs_in_plan_and_mesh() -> None:
    assert differing(facts(rank=3, world=4)) == ["plan", "mesh", "contract"]


def test_graphs_of_an_eager_root_are_not_compared() -> None:
    eager = facts(root("eager", "hooks"))
    bare = facts(root("eager", "hooks", graphs=()))
    one, two = part(eager), part(bare)
    assert artefact.digests_of(one.program, one.facts) == artefact.digests_of(
        two.program, two.facts
    )


def test_both_values_are_shown() -> None:
    found = artefact.differences({"0": {"torch": "2.12.0"}}, 0, {"torch": "2.13.0"})
    assert found[0].notes == ("`torch` is the torch version", "saved with `2.12.0`, found `2.13.0`")
