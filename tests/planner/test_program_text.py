"""Text and back: any program, any instruction, and errors that quote the line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgplan.planner.instruction_text import SPELLINGS, format_instruction, parse_instruction
from sgplan.planner.program import INSTRUCTIONS, Instruction, Phase, Program, ReduceStart, Run, Wait
from sgplan.planner.program_text import format_program, parse_program
from sgplan.planner.words import TextError

instructions = st.one_of(*(st.from_type(kind) for kind in INSTRUCTIONS))
slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@slow
@given(st.from_type(Program))
def test_a_program_parses_back_to_itself(program: Program) -> None:
    assert parse_program(format_program(program)) == program


@given(instructions)
def test_an_instruction_parses_back_to_itself(line: Instruction) -> None:
    text = format_instruction(line)
    assert "\n" not in text
    assert parse_instruction(text) == replace(line, origin=None)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (Run("fwd0", ("x",), ("logits", "saved0")), "run fwd0 (x) -> logits, saved0"),
        (Run("model", (), (), eager=True), "run model eager"),
        (ReduceStart("b0", "data"), "reduce.start b0 axis=data   hook"),
        (
            ReduceStart("b0", "data", "aten.mm.default of blocks.4.qkv"),
            "reduce.start b0 axis=data   after aten.mm.default of blocks.4.qkv",
        ),
        (ReduceStart("b0", "data", when="end"), "reduce.start b0 axis=data   at end"),
        (Wait(("b0", "b1")), "wait b0 b1"),
    ],
)
def test_spelling(line: Instruction, text: str) -> None:
    assert format_instruction(line) == text
    assert parse_instruction(text) == line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jump b0", "expected `run` or"),
        ("deliver model grads (many)", "expected a number before `many`"),
        ("reduce.start b0 axis=data", "expected `hook`, `after` or `at end`"),
        ("wait b0 # sync", "expected the end of the line before `#`"),
        ('wait "b0', 'cannot read `"b0`'),
        ("update A optimizer=slow", "expected `as_written` or `fused` or `compiled` before `slow`"),
    ],
)
def test_a_bad_line_is_quoted_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_instruction(text)
    assert message in str(caught.value)
    assert text.split()[0] in str(caught.value)


def test_a_text_without_header_is_no_program() -> None:
    with pytest.raises(TextError, match="begins with `program`"):
        parse_program("forward\n")


def test_every_instruction_has_a_spelling() -> None:
    assert set(SPELLINGS) == set(INSTRUCTIONS)


def test_a_phase_of_more_than_a_hundred_instructions_parses_back() -> None:
    lines = tuple(Wait((f"b{place}",)) for place in range(120))
    program = Program(0, 1, (("data", 1),), "a.sgplan", "p", "c", phases=(Phase("update", lines),))
    assert parse_program(format_program(program)) == program
