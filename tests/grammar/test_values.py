"""Small parts: near names, units, globs, values as they reach the plan."""

from __future__ import annotations

from typing import Any

import pytest

from sgplan.grammar import ast
from sgplan.grammar.blocks import SPEC_OF
from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.literals import (
    Dynamic,
    GuardPath,
    Interleaved,
    Interval,
    MinGain,
    Pad,
    Pattern,
    Selector,
    Stage,
    Steps,
    Triton,
)
from sgplan.grammar.nearest import joined, nearest
from sgplan.grammar.parse import parse
from sgplan.grammar.reading import Reader
from sgplan.grammar.source import decode
from sgplan.grammar.units import meant, take_apart

MIB = 1024**2


def read(kind: str, attribute: str, value: str) -> Any:
    """The value of one attribute."""
    head = f'{kind} "x"' if SPEC_OF[kind].label == "required" else kind
    document = parse(f"sgplan 1\n{head} {{ {attribute} = {value} }}\n", "p")
    reader = Reader({})
    (block,) = reader.blocks(item for item in document.items if isinstance(item, ast.Block))
    return block.value(attribute, reader.problems)


@pytest.mark.parametrize(
    ("word", "known", "close"),
    [
        ("buckt", ["bucket", "by"], "bucket"),
        ("prefered", ["prefer", "required"], "prefer"),
        ("synch", ["sync", "mesh"], "sync"),
        ("mehs", ["mesh", "sync"], "mesh"),
        ("FUSE", ["fuse"], "fuse"),
        ("compression", ["bucket", "overlap"], None),
        ("int8", ["bf16", "fp16"], None),
        ("a", ["b"], None),
        ("on", ["off"], None),
        ("gpu", ["cpu", "cuda"], None),
        ("x", [], None),
    ],
)
def test_only_a_near_name_is_suggested(word: str, known: list[str], close: str | None) -> None:
    assert nearest(word, known) == close


def test_words_are_joined_as_in_a_sentence() -> None:
    assert joined(["a"]) == "`a`"
    assert joined(["a", "b", "c"]) == "`a`, `b` or `c`"


@pytest.mark.parametrize(
    ("kind", "attribute", "text", "value"),
    [
        ("sync", "bucket", "25MiB", 25 * MIB),
        ("sync", "bucket", "1.5KiB", 1536),
        ("sync", "bucket", "25MB", 25_000_000),
        ("sync", "timeout", "10min", 600.0),
        ("sync", "timeout", "50us", 50e-6),
        ("mesh", "link", "800MiB/s", 800.0 * MIB),
        ("mesh", "data", "rest", "rest"),
        ("mesh", "data", "4", 4),
        ("slo", "throughput", "100/s", 100.0),
        ("partition", "balance", "5%", 0.05),
        ("recompute", "every", "2modules", 2),
        ("checkpoint", "every", "50steps", Steps(50)),
        ("checkpoint", "every", "10min", 600.0),
        ("verify", "forward", "1e-6", 1e-6),
        ("precision", "steps", "0..199", Interval(0, 199)),
        ("precision", "steps", "200..", Interval(200, None)),
        ("precision", "steps", "..9", Interval(None, 9)),
        ("precision", "loss_scale", "1024", 1024.0),
        ("precision", "loss_scale", "dynamic(init = 1024)", Dynamic(init=1024.0)),
        ("schedule", "kind", "1f1b", "1f1b"),
        ("schedule", "kind", "interleaved(2)", Interleaved(2)),
        ("partition", "pin", 'stage(1, "a", "b")', (Stage(1, ("a", "b")),)),
        ("fuse", "where", "[single_use, min_gain(1.1)]", ("single_use", MinGain(1.1))),
        ("fuse", "with", 'triton("k.py:f", tolerance = 1e-5)', Triton("k.py:f", None, None, 1e-5)),
        ("fuse", "in", '"layers.*"', ("layers.*",)),
        ("guard", "on", "input[0].shape[-1]", GuardPath(0, "shape", -1)),
        ("guard", "on", 'input["ids"].dtype', GuardPath("ids", "dtype")),
        ("guard", "on", "input[*].shape[0]", GuardPath("*", "shape", 0)),
        ("guard", "otherwise", "pad(with = 0, ignore = -100)", Pad(0.0, -100)),
        ("host", "cores", "[0..3, 8]", (Interval(0, 3), 8)),
        ("operator", "op", "mylib::scan", "mylib::scan"),
    ],
)
def test_value_reaches_the_plan(kind: str, attribute: str, text: str, value: object) -> None:
    assert read(kind, attribute, text) == value


def test_pattern_is_steps_of_choices() -> None:
    pattern = read("fuse", "match", '"layers.*"::bias -> aten.gelu | aten.relu')
    assert pattern == Pattern(
        (
            (Selector("layers.*", "bias"),),
            (Selector(None, "aten.gelu"), Selector(None, "aten.relu")),
        )
    )
    assert str(pattern) == '"layers.*"::bias -> aten.gelu | aten.relu'


@pytest.mark.parametrize(
    "glob", ["layers.*", "**", "a.**.b", "layers.{0..11}.mlp", "x.{a,b}", "l_*.w"]
)
def test_glob_is_accepted(glob: str) -> None:
    assert read("fuse", "in", f'"{glob}"') == (glob,)


@pytest.mark.parametrize(
    "glob", ["", ".", "a..b", "a.", "a/b", "a b", "{0..}", "{}", "_orig_mod.a", "module", "[0]"]
)
def test_glob_is_refused(glob: str) -> None:
    (problem,) = read("fuse", "in", f'"{glob}"')
    assert problem.code == "SG0215"


def test_range_contains_both_ends() -> None:
    assert 199 in Interval(0, 199)
    assert 200 not in Interval(0, 199)
    assert 10**9 in Interval(200, None)


def test_quantity_comes_apart() -> None:
    assert take_apart("1f1b") is None
    number = take_apart("-1.5e-3ms")
    assert number is not None
    assert (number.digits, number.unit, number.whole) == ("-1.5e-3", "ms", None)


@pytest.mark.parametrize(
    ("unit", "units"),
    [
        ("mb", ("MiB", "MB")),
        ("KIB", ("KiB", "KB")),
        ("sec", ("s",)),
        ("step", ("steps",)),
        ("q", ()),
    ],
)
def test_misspelt_unit_could_be(unit: str, units: tuple[str, ...]) -> None:
    assert meant(unit) == units


def test_byte_order_mark_is_dropped() -> None:
    assert decode(b"\xef\xbb\xbfsgplan 1", "p") == "sgplan 1"


def test_bytes_that_are_no_text_are_refused_with_their_place() -> None:
    with pytest.raises(Refused) as refused:
        decode(b"sgplan 1\n\xff", "p")
    (problem,) = refused.value.diagnostics
    assert problem.primary is not None
    assert (problem.code, problem.primary.span.line, problem.primary.span.column) == (
        "SG0120",
        2,
        1,
    )


@pytest.mark.parametrize(
    ("kind", "attribute", "value"),
    [
        ("sync", "bucket", "1e400MiB"),
        ("sync", "bucket", f"{'9' * 5000}MiB"),
        ("sync", "bucket", "9223372036854775807MiB"),
        ("sync", "timeout", "1e300h"),
        ("checkpoint", "keep", "9" * 5000),
        ("mesh", "data", "9223372036854775808"),
        ("verify", "forward", "1e400"),
        ("precision", "steps", "0..99999999999999999999"),
    ],
)
def test_no_number_is_too_large_to_be_refused(kind: str, attribute: str, value: str) -> None:
    (problem,) = read(kind, attribute, value)
    assert problem.code == "SG0210"
    assert "larger than any number" in problem.message


def test_a_whole_number_with_an_exponent_is_shown_without() -> None:
    (problem,) = read("checkpoint", "keep", "1e3")
    assert (problem.code, problem.help) == ("SG0204", "write `1000`")


@pytest.mark.parametrize("glob", ["l.{5..2}", "***", "a**", "l.{0..9999999}", "a b", "{a,}"])
def test_a_glob_that_can_match_nothing_is_refused(glob: str) -> None:
    (problem,) = read("recompute", "in", f'"{glob}"')
    assert problem.code == "SG0215"


@pytest.mark.parametrize("glob", ["towers.en-de.*", "**.norm", "l.{3..3}", "{a-b,c}", "x*y*"])
def test_a_glob_of_any_module_name_is_read(glob: str) -> None:
    assert read("recompute", "in", f'"{glob}"') == (glob,)


def test_an_empty_list_says_nothing_but_in_where() -> None:
    for kind, attribute in (("recompute", "in"), ("host", "cores"), ("guard", "allow")):
        (problem,) = read(kind, attribute, "[]")
        assert problem.message == f"the list of `{attribute}` is empty"
    assert read("fuse", "where", "[]") == ()


def test_bytes_that_are_no_text_are_placed_by_character() -> None:
    with pytest.raises(Refused) as refused:
        decode("sgplan 1\n# é".encode() + b"\xff", "p")
    (problem,) = refused.value.diagnostics
    assert problem.primary is not None
    span = problem.primary.span
    assert (span.line, span.column, span.start) == (2, 4, 12)
