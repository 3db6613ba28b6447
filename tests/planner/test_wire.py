"""Dataclasses as plain data: everything comes back, nothing foreign gets in."""

from __future__ import annotations

import json

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgplan.planner.facts import Facts
from sgplan.planner.pipeline import lower
from sgplan.planner.program import Program
from sgplan.planner.wire import WireError, decode, encode

from .build import facts, plan


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=30)
@given(st.from_type(Program))
def test_any_program_comes_back(program: Program) -> None:
    assert decode(Program, json.loads(json.dumps(encode(program)))) == program


def test_facts_come_back_through_msgpack() -> None:
    found = facts()
    assert decode(Facts, msgpack.unpackb(msgpack.packb(encode(found)))) == found


def test_instructions_carry_their_kind() -> None:
    phases = encode(lower(plan(), facts()))["phases"]
    assert phases[0]["instructions"][0]["is"] == "Run"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": "0"}, "Facts.rank is str, expected int"),
        ({"rank": True}, "Facts.rank is bool, expected int"),
        ({"color": 1}, "Facts has the unknown field `color`"),
        ({"roots": {}}, "Facts.roots is dict, expected a list"),
        ({"roots": [{}]}, r"Facts.roots\[0\] lacks the field `cls`"),
        ({"torch": None}, "Facts.torch is nothing, expected str"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(change: dict[str, object], message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode(Facts, {**encode(facts()), **change})


def test_a_missing_field_is_named() -> None:
    data = encode(facts())
    del data["world"]
    with pytest.raises(WireError, match="Facts lacks the field `world`"):
        decode(Facts, data)


def test_a_word_outside_its_list_is_named() -> None:
    data = encode(facts())
    data["roots"][0]["path"] = "pigeon"
    with pytest.raises(WireError, match=r"roots\[0\].path is `pigeon`, expected one of hooks"):
        decode(Facts, data)


def test_an_unknown_instruction_is_named() -> None:
    data = encode(lower(plan(), facts()))
    data["phases"][0]["instructions"][0]["is"] = "Jump"
    with pytest.raises(WireError, match="of the unknown kind `Jump`"):
        decode(Program, data)
