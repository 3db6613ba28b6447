"""The check before launch: nothing wrong in what we lower, something wrong in every broken copy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sgplan.grammar.diagnostics import Refused
from sgplan.planner import safety
from sgplan.planner.facts import Engine, Path
from sgplan.planner.passes.base import with_phase
from sgplan.planner.pipeline import lower
from sgplan.planner.program import Instruction, Program, ReduceStart, Run, Wait

from .build import FORWARD, facts, plan, root
from .conftest import Recorded

SMALL = "bucket = 1KiB  first_bucket = 1KiB"
PLANS = [
    plan(f"sync {{ {SMALL} }}"),
    plan(f"sync {{ {SMALL}  wire = bf16 }}"),
    plan(f"sync {{ {SMALL}  overlap = off }}"),
]
WAYS: list[tuple[Engine, Path]] = [
    ("inductor", "in_graph"),
    ("inductor", "hooks"),
    ("eager", "hooks"),
    ("inductor", "stock"),
    ("eager", "none"),
]


def programs(which: int = 0, engine: Engine = "inductor", path: Path = "in_graph") -> list[Program]:
    return [lower(PLANS[which], facts(root(engine, path), rank=rank)) for rank in (0, 1)]


@pytest.mark.parametrize("which", range(len(PLANS)))
@pytest.mark.parametrize(("engine", "path"), WAYS)
def test_what_is_lowered_is_safe(which: int, engine: Engine, path: Path) -> None:
    assert safety.check(programs(which, engine, path)) == []


def test_a_rank_on_hooks_beside_one_in_the_graph_is_safe() -> None:
    assert safety.check([programs()[0], programs(0, "eager", "hooks")[1]]) == []


def test_ranks_with_different_graphs_are_safe() -> None:
    other = root(graphs=(replace(FORWARD, digest="0" * 64),))
    assert safety.check([programs()[0], lower(PLANS[0], facts(other, rank=1))]) == []


def backward(program: Program) -> list[Instruction]:
    return list(program.phase("backward"))


@given(st.data(), st.sampled_from([0, 1]), st.sampled_from(WAYS[:3]))
def test_a_lost_line_is_found(data: st.DataObject, which: int, way: tuple[Engine, Path]) -> None:
    first, second = programs(which, *way)
    lines = backward(second)
    place = data.draw(st.integers(0, len(lines) - 1))
    assume(not isinstance(lines[place], Run))
    broken = with_phase(second, "backward", lines[:place] + lines[place + 1 :])
    assert safety.check([first, broken])


@given(st.data(), st.sampled_from([0, 1]), st.sampled_from(WAYS[:3]))
def test_a_repeated_line_is_found(
    data: st.DataObject, which: int, way: tuple[Engine, Path]
) -> None:
    first, second = programs(which, *way)
    lines = backward(second)
    place = data.draw(st.integers(0, len(lines) - 1))
    assume(not isinstance(lines[place], Run))
    broken = with_phase(second, "backward", [*lines[:place], lines[place], *lines[place:]])
    assert safety.check([first, broken])


@given(st.permutations(range(3)), st.sampled_from(WAYS[:3]))
def test_starts_in_another_order_are_found(order: list[int], way: tuple[Engine, Path]) -> None:
    assume(order != sorted(order))
    first, second = programs(0, *way)
    lines = backward(second)
    places = [i for i, line in enumerate(lines) if isinstance(line, ReduceStart)]
    moved = list(lines)
    for place, source in zip(places, order, strict=True):
        moved[place] = lines[places[source]]
    assert safety.check([first, with_phase(second, "backward", moved)])


def facts_of(hazards: list[safety.Hazard]) -> list[str]:
    return [hazard.fact for hazard in hazards]


def test_a_gradient_in_no_bucket_is_named() -> None:
    program = programs()[0]
    short = replace(program.buckets[2], slots=())
    broken = replace(program, buckets=(*program.buckets[:2], short))
    assert "gradient 0 of `model` is in 0 buckets" in facts_of(safety.check([broken]))


def test_an_update_before_the_gradients_is_named() -> None:
    program = programs()[0]
    update = program.phase("update")[0]
    early = with_phase(
        program, "backward", [*backward(program)[:1], update, *backward(program)[1:]]
    )
    assert "`AdamW` updates before the last `deliver`" in facts_of(safety.check([early]))


def test_a_value_used_after_its_end_is_named() -> None:
    program = programs()[0]
    again = Run("bwd0", ("saved0", "dlogits"), ("grads",))
    broken = with_phase(program, "backward", [*backward(program), again])
    assert "`saved0` is used after it was freed" in facts_of(safety.check([broken]))


def test_a_wait_without_a_start_is_named() -> None:
    program = programs()[0]
    lines = [line for line in backward(program) if not isinstance(line, ReduceStart)]
    found = facts_of(safety.check([with_phase(program, "backward", lines)]))
    assert "`wait` of `b0`, which has not started" in found
    assert "bucket `b0` is never reduced" in found


def test_a_start_without_its_cast_is_named() -> None:
    program = programs(1)[0]
    lines = [line for line in backward(program) if line.name != "cast"]
    found = facts_of(safety.check([with_phase(program, "backward", lines)]))
    assert "`b0` starts without its cast" in found


def test_other_buckets_on_one_rank_are_named() -> None:
    other = lower(plan("sync { bucket = 1KiB  first_bucket = 2KiB }"), facts(rank=1))
    found = facts_of(safety.check([programs()[0], other]))
    assert found == [
        "it sends `reduce b0 608 × f32 axis=data` where rank 0 sends "
        "`reduce b0 320 × f32 axis=data`"
    ]


def test_the_grid_marks_the_offending_row(recorded: Recorded) -> None:
    first, second = programs()
    lines = backward(second)
    lines[1], lines[2] = lines[2], lines[1]
    with pytest.raises(Refused) as caught:
        safety.require_safe([first, with_phase(second, "backward", lines)])
    found = caught.value.diagnostics[0]
    assert found.code == "SG0511"
    assert found.primary is None, "the default of `overlap` has no place in the plan"
    recorded("safety_grid", f"{found.message}\n\n{found.notes[0]}\n")


def test_the_clause_that_asked_is_shown() -> None:
    written = plan(f"sync {{ {SMALL}  overlap = prefer }}")
    program = lower(written, facts())
    lines: list[Instruction] = [r for r in backward(program) if not isinstance(r, Wait)]
    lines.append(Wait(("b0", "b0"), origin=backward(program)[2].origin))
    with pytest.raises(Refused) as caught:
        safety.require_safe([with_phase(program, "backward", lines)])
    spans = [d.primary.span.line for d in caught.value.diagnostics if d.primary]
    assert spans
    assert set(spans) == {3}


def test_no_programs_are_safe() -> None:
    assert safety.check([]) == []
