"""The checked plan: typed blocks, origins, wire form, and what `resolve` makes of a world."""

from __future__ import annotations

import json
from dataclasses import replace

import msgpack
import pytest

from sgplan.grammar.check import check_text
from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.plan import Mesh, PlanFile, Sync

MIB = 1024**2
PLAN = """sgplan 1
let large = 100MiB
model "G" { is = "gan:Generator" }
mesh { data = rest }
sync { bucket = 4MiB  overlap = required }
sync "g" { model = "G"  bucket = large }
update { use = off  optimizer = fused }
override "eight" { world = 8..  sync { bucket = 50MiB } }
override "gpu"   { device = cuda  sync { wire = bf16 } }
"""


def plan_file(text: str = PLAN, *sets: str) -> PlanFile:
    plan, found = check_text(text, "plan.sgplan", sets)
    assert plan is not None, found
    return plan


def test_plan_travels_as_msgpack_and_json() -> None:
    plan = plan_file(PLAN, "sync.first_bucket=2MiB")
    assert PlanFile.from_wire(msgpack.unpackb(msgpack.packb(plan.to_wire()))) == plan
    assert PlanFile.from_wire(json.loads(json.dumps(plan.to_wire()))) == plan


def test_wire_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 99"):
        PlanFile.from_wire(plan_file().to_wire() | {"version": 99})


def test_sizes_are_bytes_and_defaults_are_filled() -> None:
    sync = plan_file().resolve(2, "cpu").sync_of(None)
    assert (sync.bucket, sync.first_bucket, sync.overlap) == (4 * MIB, MIB, "required")


def test_empty_plan_is_all_defaults() -> None:
    plan = plan_file("sgplan 1\n").resolve(2, "cpu")
    assert plan.mesh.axes == (("data", 2), ("pipe", 1))
    assert plan.sync_of("anything") == Sync()
    assert not plan.sync_of(None).present


def test_block_of_a_model_wins_over_the_one_for_all() -> None:
    plan = plan_file().resolve(2, "cpu")
    assert plan.sync_of("G").bucket == 100 * MIB
    assert plan.sync_of("D").bucket == 4 * MIB


def test_origin_is_the_written_attribute_and_none_for_a_default() -> None:
    sync = plan_file().resolve(2, "cpu").sync_of(None)
    origin = sync.origin("bucket")
    assert origin is not None
    assert (origin.line, PLAN[origin.start : origin.end]) == (5, "bucket = 4MiB")
    assert sync.origin("wire") is None


def test_override_holds_from_its_world_on() -> None:
    assert plan_file().resolve(7, "cpu").sync_of(None).bucket == 4 * MIB
    assert plan_file().resolve(8, "cpu").sync_of(None).bucket == 50 * MIB


def test_override_merges_attribute_by_attribute() -> None:
    sync = plan_file().resolve(8, "cuda").sync_of(None)
    assert (sync.bucket, sync.overlap, sync.wire) == (50 * MIB, "required", "bf16")


def test_set_wins_over_override_and_file() -> None:
    plan = plan_file(PLAN, "sync.bucket=1MiB", "sync.bucket=2MiB").resolve(8, "cpu")
    origin = plan.sync_of(None).origin("bucket")
    assert plan.sync_of(None).bucket == 2 * MIB
    assert origin is not None
    assert (origin.source, origin.line) == ("--set", 2)


def test_set_adds_a_block_that_the_file_lacks() -> None:
    plan = plan_file(PLAN, "capture.engine=eager").resolve(2, "cpu")
    assert plan.capture_of(None).engine == "eager"


def test_set_reaches_a_labelled_block() -> None:
    plan = plan_file(PLAN, "sync.g.bucket=3MiB").resolve(2, "cpu")
    assert plan.sync_of("G").bucket == 3 * MIB


def test_block_that_is_off_counts_as_absent() -> None:
    assert plan_file().resolve(2, "cpu").updates == ()
    again = plan_file(PLAN, "update.use=on").resolve(2, "cpu")
    assert again.update_of(None).optimizer == "fused"


def test_mesh_that_does_not_fit_is_refused_with_the_figures() -> None:
    plan = plan_file("sgplan 1\nmesh { data = 4 }\n")
    with pytest.raises(Refused) as refused:
        plan.resolve(6, "cpu")
    (problem,) = refused.value.diagnostics
    assert problem.code == "SG0301"
    assert "4 ranks" in problem.message
    assert "6 ranks" in problem.message


def test_two_active_overrides_of_one_attribute_are_refused() -> None:
    plan = plan_file()
    (first, *rest) = plan.overrides
    doubled = replace(plan, overrides=(first, replace(first, label="again"), *rest))
    assert doubled.resolve(7, "cpu").world == 7
    with pytest.raises(Refused) as refused:
        doubled.resolve(8, "cpu")
    assert [problem.code for problem in refused.value.diagnostics] == ["SG0226"]


def test_rest_of_the_mesh_is_a_number() -> None:
    mesh = plan_file().resolve(6, "cpu").mesh
    assert isinstance(mesh, Mesh)
    assert mesh.data == 6


def test_digest_knows_content_and_not_layout() -> None:
    tight = plan_file("sgplan 1\nsync{bucket=1MiB}\n")
    wide = plan_file("sgplan 1\n# why\nlet one = 1024KiB\nsync {\n  bucket = one\n}\n")
    assert tight.resolve(2, "cpu").digest == wide.resolve(2, "cpu").digest


def test_digest_knows_what_was_written() -> None:
    default, written = (
        plan_file("sgplan 1\nsync { }\n"),
        plan_file("sgplan 1\nsync { bucket = 25MiB }\n"),
    )
    assert default.resolve(2, "cpu").digest != written.resolve(2, "cpu").digest


def test_digest_knows_the_override_that_holds() -> None:
    plan = plan_file()
    assert plan.resolve(2, "cpu").digest != plan.resolve(2, "cuda").digest


def test_lets_are_kept_for_display() -> None:
    assert [(let.name, let.text) for let in plan_file().lets] == [("large", "100MiB")]


def test_a_long_chain_of_lets_is_walked_without_recursion() -> None:
    chain = "".join(f"let x{i} = x{i + 1}\n" for i in range(2000))
    for last, code in (('"a"', "SG0232"), ("x0", "SG0229")):
        plan, found = check_text(f"sgplan 1\n{chain}let x2000 = {last}\n", "p")
        assert plan is None
        assert {problem.code for problem in found} == {code}


def test_a_set_with_a_space_before_its_unit_is_told_as_in_a_file() -> None:
    (problem,) = check_text("sgplan 1\n", "p", ["sync.bucket=4 MiB"])[1]
    assert (problem.code, problem.help) == ("SG0108", "write `4MiB`")
