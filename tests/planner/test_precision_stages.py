"""Which loss scale a plan asks for at a step, and where its stages begin."""

from __future__ import annotations

import pytest

from sgplan.grammar.check import check_text
from sgplan.grammar.plan import Dynamic, Plan
from sgplan.planner.precision import begins_of, ever_scaled, loss_scale_at, stages_of

MODEL = 'model "net" { is = "train:Net" }\n'


def plan(*blocks: str) -> Plan:
    found, problems = check_text("sgplan 1\n" + MODEL + "\n".join(blocks) + "\n", "plan.sgplan")
    assert found is not None, problems
    assert not [problem for problem in problems if problem.severity == "error"]
    return found.resolve(1, "cpu")


FP16 = 'precision "all" { compute = fp16 }'
EARLY_OFF = 'precision "early" { steps = 0..9  priority = 1  loss_scale = off }'


@pytest.mark.parametrize(
    ("blocks", "step", "expected"),
    [
        ((FP16,), 0, Dynamic()),
        (('precision "p" { compute = bf16 }',), 0, None),
        (('precision "p" { compute = fp16  loss_scale = 128 }',), 0, 128),
        (('precision "p" { compute = fp16  loss_scale = off }',), 0, None),
        (('precision "p" { params = fp16 }',), 0, Dynamic()),
        (('precision "p" { params = fp16  compute = fp32 }',), 0, None),
        ((EARLY_OFF, FP16), 9, None),
        ((EARLY_OFF, FP16), 10, Dynamic()),
        (('precision "p" { steps = 5..7  compute = fp16 }',), 4, None),
        (('precision "p" { steps = 5..7  compute = fp16 }',), 7, Dynamic()),
        (('precision "p" { model = "net"  compute = fp16 }',), 0, None),
    ],
)
def test_loss_scale_of_a_step(
    blocks: tuple[str, ...], step: int, expected: float | Dynamic | None
) -> None:
    assert loss_scale_at(plan(*blocks), "model", step) == expected


def test_a_scale_that_begins_where_another_block_ends_is_one() -> None:
    assert ever_scaled(plan(EARLY_OFF, FP16), "model")


@pytest.mark.parametrize(
    "block",
    [
        'precision "p" { compute = bf16 }',
        'precision "p" { compute = fp16  loss_scale = off }',
        'precision "p" { model = "net"  compute = fp16 }',
    ],
)
def test_what_is_never_scaled(block: str) -> None:
    assert not ever_scaled(plan(block), "model")


def test_stages_begin_where_blocks_begin_and_behind_their_ends() -> None:
    found = plan(
        'precision "a" { steps = 3..5  compute = bf16 }',
        'precision "b" { steps = 6..9  compute = fp16 }',
    )
    assert begins_of(found.precisions) == [0, 3, 6, 10]
    assert begins_of(()) == [0]
    assert [settings == () for settings in stages_of(found, "model").distinct()] == [
        True,
        False,
        False,
    ]
