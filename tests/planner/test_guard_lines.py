"""Guards in words, and lines that a plan may be given as they are."""

from __future__ import annotations

from typing import Any

import pytest

from sgplan.grammar.check import check_text
from sgplan.grammar.plan import Guard, GuardPath
from sgplan.planner.guard_lines import beyond, declared, holding, line_for, needs_graph, with_value

from .build import plan


def guard(text: str) -> Guard:
    (found,) = plan(text).guards
    return found


@pytest.mark.parametrize(
    ("text", "says", "else_"),
    [
        ("on = input[0].shape[0]", "one for the first value seen", "else up to 4 more compiles"),
        ("on = input[0].shape[0]  allow = [32, 64]", "one for each of [32, 64]", "else up to 4"),
        ("on = input[0].shape[1]  allow = 1..64", "one for 1..64, one for 1", "then an error"),
        ('on = input["t"]  allow = 0.5..2  spent = eager', "one for 0.5..2", "then eager"),
        ("on = module.count  allow = 0..", "one for 0.., one for 0, one for 1", "else up to 4"),
        ("on = input[*].dtype  allow = [float32]  otherwise = error", "[float32]", "else error"),
    ],
)
def test_a_guard_says_its_variants(text: str, says: str, else_: str) -> None:
    block = guard(f'guard "g" {{ {text} }}')
    assert says in declared(block)
    assert else_ in beyond(block)


@pytest.mark.parametrize(
    ("text", "allowed", "new", "line"),
    [
        ("on = input[0].shape[0]  allow = [32, 64]", [32, 64], 17, "allow = [17, 32, 64]"),
        ("on = input[0].shape[1]  allow = 8..64", [], 128, "allow = 8..128"),
        ("on = input[0].shape[1]", [3, 5, 7, 9], 11, "allow = 3..11"),
        ("on = module.training  allow = [on]", [True], False, "allow = [on, off]"),
        ('on = input["r"]  allow = ["sum"]', ["sum"], "mean", 'allow = ["sum", "mean"]'),
        ("on = input[0].dtype  allow = [float32]", ["float32"], "float64", "[float32, float64]"),
        (
            'on = input[0].shape[0]  allow = [8]  otherwise = pad(with = 0, mask = "m")',
            [8],
            9,
            'allow = [8, 9]  otherwise = pad(with = 0, mask = "m")',
        ),
        ("on = input[0].shape[0]  allow = [8]  priority = 2", [8], 9, "[8, 9]  priority = 2"),
    ],
)
def test_the_line_that_allows_more_is_a_plan(
    text: str, allowed: list[Any], new: Any, line: str
) -> None:
    found = with_value(guard(f'guard "g" {{ {text} }}'), allowed, new)
    assert line in found
    assert check_text(f"sgplan 1\n{found}\n", "plan.sgplan")[1] == []


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (GuardPath(0, "shape", 1), 16, 17),
        (GuardPath("ids", "dtype"), "float32", "float64"),
        (GuardPath("temperature", "value"), 2.0, 1.95),
        (GuardPath("layers.0", "attribute", attribute="counter"), 0, 1),
    ],
)
def test_a_value_that_the_compiler_found_can_be_declared(
    path: GuardPath, old: Any, new: Any
) -> None:
    (block,) = plan(line_for(path, old, new)).guards
    assert block.on == path
    assert block.allow is not None


def test_the_highest_priority_holds_on_a_path() -> None:
    found = plan(
        'guard "a" { on = input[0].shape[0]  allow = [8] }\n'
        'guard "b" { on = input[0].shape[0]  allow = [9]  priority = 2 }\n'
    )
    assert [block.label for block in holding(found, "model")] == ["b"]


def test_the_line_keeps_the_model() -> None:
    model = 'model "G" { is = "train:G" }\n'
    (block,) = plan(
        f'{model}guard "g" {{ model = "G"  on = input[0].shape[0]  allow = [8] }}'
    ).guards
    line = with_value(block, [8], 9)
    (found,) = plan(model + line).guards
    assert (found.model, found.allow) == ("G", (8, 9))


@pytest.mark.parametrize("first", ["all", "G"])
def test_the_guard_of_the_model_holds_wherever_it_is_written(first: str) -> None:
    blocks = {
        "all": 'guard "all" { on = input[0].shape[0]  allow = [8] }',
        "G": 'guard "G" { model = "G"  on = input[0].shape[0]  allow = [9] }',
    }
    other = "G" if first == "all" else "all"
    found = plan(f'model "G" {{ is = "train:G" }}\n{blocks[first]}\n{blocks[other]}')
    assert [block.label for block in holding(found, "G")] == ["G"]
    assert [block.label for block in holding(found, "D")] == ["all"]


def test_only_what_stops_a_run_needs_no_graph() -> None:
    assert needs_graph(guard('guard "g" { on = input[0].shape[0]  otherwise = error }'))
    assert needs_graph(guard('guard "g" { on = input[0].dtype }'))
    assert not needs_graph(guard('guard "g" { on = input[0].dtype  otherwise = error }'))
