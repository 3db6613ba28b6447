"""Legality: where each instruction may stand, what must fit, and whose fault a violation is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sgplan.grammar.diagnostics import Refused
from sgplan.planner import legal
from sgplan.planner.passes.base import order_faults, with_phase
from sgplan.planner.pipeline import PASSES, lower
from sgplan.planner.program import (
    INSTRUCTIONS,
    PHASES,
    Cast,
    Deliver,
    Free,
    Instruction,
    PhaseName,
    Program,
    ReduceStart,
    Run,
    Update,
    Wait,
)

from .build import facts, plan

PROMISED = frozenset().union(*(each.promises for each in PASSES))
WIRE = plan("sync { wire = bf16  bucket = 1KiB  first_bucket = 1KiB }")


def program() -> Program:
    return lower(WIRE, facts())


def test_a_lowered_program_is_legal() -> None:
    assert legal.violations(program(), PROMISED) == []


def test_every_instruction_has_a_place() -> None:
    assert set(legal.PLACES) == set(INSTRUCTIONS)


def test_every_place_and_rule_begins_with_a_promise_of_a_pass() -> None:
    since = {place.since for place in legal.PLACES.values()} | {r.since for r in legal.RULES}
    assert since <= PROMISED


SAMPLES: list[Instruction] = [
    Run("fwd0", (), ()),
    ReduceStart("b0", "data"),
    Wait(("b0",)),
    Deliver("model", 7),
    Cast("b0", "f32", "bf16"),
    Free(("x",)),
    Update("AdamW", "fused"),
]


@pytest.mark.parametrize("line", SAMPLES, ids=lambda line: line.name)
@pytest.mark.parametrize("phase", PHASES)
def test_an_instruction_stands_in_its_phases_only(line: Instruction, phase: PhaseName) -> None:
    there = with_phase(program(), phase, [*program().phase(phase), line])
    allowed = phase in legal.PLACES[type(line)].phases
    assert any("stands in phase" in fault for fault in legal.violations(there, PROMISED)) != allowed


@pytest.mark.parametrize("line", SAMPLES, ids=lambda line: line.name)
def test_an_instruction_stands_after_its_promise_only(line: Instruction) -> None:
    place = legal.PLACES[type(line)]
    early = with_phase(program(), sorted(place.phases)[0], [line])
    faults = legal.violations(early, PROMISED - {place.since})
    assert any(f"before {place.since} are promised" in fault for fault in faults)


def changed(**fields: object) -> Program:
    return replace(program(), **fields)  # pyright: ignore[reportArgumentType]


def with_line(line: Instruction) -> Program:
    return with_phase(program(), "backward", [*program().phase("backward"), line])


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (changed(graphs=program().graphs * 2), "two graphs named `fwd0`"),
        (changed(buckets=program().buckets * 2), "two buckets named `b0`"),
        (changed(roots=()), "the unknown root `model`"),
        (changed(contract=""), "a digest is missing"),
        (changed(mesh=(("pipe", 2),)), "names an axis that the mesh lacks"),
        (with_line(Run("fwd7", (), ())), "`run` of the unknown graph `fwd7`"),
        (with_line(Run("fwd0", (), (), eager=True)), "does not fit a graph of direction `forward`"),
        (with_line(Wait(("b9",))), "the unknown bucket `b9`"),
        (with_line(ReduceStart("b0", "data", "mm", "end")), "is at the end and behind an op"),
        (with_line(Cast("b0", "f64", "bf16")), "does not fit f32 and bf16"),
        (
            changed(buckets=(replace(program().buckets[0], numel=1), *program().buckets[1:])),
            "bucket `b0` is smaller than its gradients",
        ),
    ],
)
def test_what_does_not_fit_is_named(wrong: Program, fault: str) -> None:
    assert any(fault in found for found in legal.violations(wrong, PROMISED))


def test_overlapping_slots_are_named() -> None:
    first = program().buckets[0]
    slots = (first.slots[0], replace(first.slots[1], offset=0), *first.slots[2:])
    wrong = changed(buckets=(replace(first, slots=slots), *program().buckets[1:]))
    assert "`ln.weight` overlaps its neighbour in bucket `b0`" in legal.violations(wrong, PROMISED)


def test_a_bad_pass_is_named_with_the_program_before_it() -> None:
    with pytest.raises(Refused) as caught:
        legal.require(changed(roots=()), program(), "lower_roots", PROMISED)
    found = caught.value.diagnostics[0]
    assert found.code == "SG0510"
    assert found.message == "internal error in pass `lower_roots`: the unknown root `model`"
    assert "program rank 0 of 2" in found.notes[-1]


def test_the_order_of_the_passes_holds() -> None:
    assert order_faults(PASSES) == []


def test_a_pass_before_what_it_needs_is_a_fault() -> None:
    faults = order_faults(PASSES[::-1])
    assert "`seal` needs lifetimes, updates, which no earlier pass promises" in faults


def test_a_promise_given_twice_is_a_fault() -> None:
    faults = order_faults((*PASSES, PASSES[0]))
    assert faults == ["`assign_buckets` promises buckets, as `assign_buckets` does"]


def test_the_seam_sees_every_pass_once_and_in_order() -> None:
    seen: list[str] = []
    lower(WIRE, facts(), after_pass=lambda each, _: seen.append(each.name))
    assert seen == [each.name for each in PASSES]
