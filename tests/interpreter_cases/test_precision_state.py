"""Loss scale and masters under plain scripts, in real processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sgplan.interpreter import events
from tests.gloo.harness import Job

from .kit import EMPTY, INDUCTOR, plain, planned, result, results

pytestmark = pytest.mark.gloo

FP16 = 'sgplan 1\nprecision "p" { compute = fp16 }\n'
BF16 = 'sgplan 1\nprecision "p" { compute = bf16 }\n'
# What is grown once is too large for fp16.
MOVING = (
    'sgplan 1\nprecision "p" { compute = fp16  '
    "loss_scale = dynamic(init = 1024, growth = 65536, backoff = 0.0000152587890625, every = 2) }\n"
)
MASTERS = 'sgplan 1\nprecision "p" { params = bf16  master = fp32 }\n'
LOW = 'sgplan 1\nprecision "p" { params = bf16  compute = bf16 }\n'
OWN_MASTERS = 'sgplan 1\nprecision "p" { master = fp32 }\n'


def skips(job: Job, rank: int = 0) -> list[bool]:
    return [event.skipped for event in job.of(events.StepFinished, rank)]


def test_overflow_of_one_rank_is_skipped_by_all(tmp_path: Path) -> None:
    """The update of that step is left out, everything else goes on as the script wrote it."""
    under = planned("precise.py", "c", "--overflow", "2", folder=tmp_path / "plan", plan=FP16)
    without = plain("precise.py", "c", "--leave-out", "2", folder=tmp_path / "plain")
    ours, expected = results(under, "c"), result(without, "c")
    assert skips(under, 0) == skips(under, 1) == [False, False, True, False, False, False]
    assert ours[0]["parameters"] == ours[1]["parameters"]
    for name in ("lr", "moved", "counted"):
        assert ours[0][name] == ours[1][name] == expected[name]
    assert ours[0]["parameters"] == pytest.approx(expected["parameters"], abs=2e-4)


def test_moving_scale_compiles_once(tmp_path: Path) -> None:
    """It grows after two steps, overflows, backs off, and so on: one compile."""
    job = planned("precise.py", "c", "--steps", "8", folder=tmp_path, plan=MOVING)
    assert skips(job) == [False, False, True, False, False, True, False, False]
    assert len(job.of(events.CompileFinished)) == 1


@pytest.mark.slow
def test_clipping_sees_unscaled_gradients(tmp_path: Path) -> None:
    under = planned("precise.py", "c", "--clip", "0.5", folder=tmp_path / "plan", plan=FP16)
    without = plain("precise.py", "c", "--clip", "0.5", folder=tmp_path / "plain")
    ours, expected = ([float(v) for v in result(job, "c")["norm"]] for job in (under, without))
    assert ours == pytest.approx(expected, rel=2e-3)


@pytest.mark.slow
def test_clipping_without_unscale_stays_as_written(tmp_path: Path) -> None:
    """The script clips scaled gradients; a plan that says nothing of it changes no bit."""
    words = ("precise.py", "c", "--clip", "0.5", "--scaler")
    under = planned(*words, folder=tmp_path / "plan", plan=EMPTY)
    without = plain(*words, folder=tmp_path / "plain")
    assert results(under, "c") == results(without, "c")


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["at_first", "behind_the_first_forward"])
def test_own_scaler_is_left_to_the_script(tmp_path: Path, late: bool) -> None:
    """An overflow at step 0: same rates, same skips, and the plan says that it adds no scale."""
    words = ("precise.py", "c", "--scaler", "--overflow", "0", *(["--late"] if late else []))
    under = planned(*words, folder=tmp_path / "plan", plan=FP16)
    without = plain(*words, folder=tmp_path / "plain")
    ours, expected = result(under, "c"), result(without, "c")
    for name in ("lr", "moved", "counted"):
        assert ours[name] == expected[name]
    assert skips(under) == [not moved for moved in expected["moved"]]
    notes = [note for note in under.of(events.NoteAdded) if "GradScaler" in str(note)]
    assert len(notes) == 1


def test_steps_that_the_script_leaves_out_are_not_counted(tmp_path: Path) -> None:
    under = planned("precise.py", "c", "--leave-out", "1", "3", folder=tmp_path, plan=FP16)
    assert skips(under) == [False] * 4


@pytest.mark.parametrize(
    ("plan", "low"),
    [
        pytest.param(MASTERS, (), id="plan"),
        pytest.param(OWN_MASTERS, ("--low", "bfloat16"), marks=pytest.mark.slow, id="script"),
    ],
)
def test_masters_survive_a_new_process(tmp_path: Path, plan: str, low: tuple[str, ...]) -> None:
    """Ten steps, and five, save, load elsewhere, five: the same bits."""
    words = ("--model", "own", *low)
    whole, half, file = "whole.pt", "half.pt", tmp_path / "first" / "half.pt"
    at_once = planned(
        "precise.py", "c", *words, "--steps", "10", "--save", whole,
        folder=tmp_path / "whole", plan=plan,
    )  # fmt: skip
    planned(
        "precise.py", "c", *words, "--steps", "5", "--save", half,
        folder=tmp_path / "first", plan=plan,
    )  # fmt: skip
    second = planned(
        "precise.py", "c", *words, "--steps", "5", "--first", "5", "--load", str(file),
        "--save", whole, folder=tmp_path / "second", plan=plan,
    )  # fmt: skip
    one, two = (torch.load(job.folder / whole) for job in (at_once, second))
    assert {str(v.dtype) for v in one["model"].values()} == {"torch.bfloat16"}
    same(one, two)
    masters = one["optimizer"]["sgplan.masters"]
    for master, parameter in zip(masters.values(), one["model"].values(), strict=True):
        assert master.dtype is torch.float32
        assert torch.equal(master.bfloat16(), parameter)
    assert any(not torch.equal(m, m.bfloat16().float()) for m in masters.values())
    plain_optimizer(one)


def same(one: Any, two: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
    elif isinstance(one, dict):
        assert list(one) == list(two)
        for name in one:
            same(one[name], two[name])
    elif isinstance(one, list):
        for left, right in zip(one, two, strict=True):
            same(left, right)
    else:
        assert one == two


def plain_optimizer(kept: Any) -> None:
    """Torch without sgplan reads the file: it ignores the masters and casts the moments."""
    parameters = [torch.nn.Parameter(value) for value in kept["model"].values()]
    optimizer = torch.optim.AdamW(parameters)
    optimizer.load_state_dict(kept["optimizer"])
    assert optimizer.state[parameters[0]]["exp_avg"].dtype is torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("plan", [INDUCTOR, BF16], ids=["compiled", "bf16"])
def test_gradients_are_looked_at_under_a_scale_only(tmp_path: Path, plan: str) -> None:
    words = ("--overflow", "2", "--overflow-by", "inf")
    job = planned("precise.py", "c", *words, folder=tmp_path, plan=plan)
    assert skips(job) == [False] * 6
    assert not any(map(math.isfinite, result(job, "c")["parameters"]))


@pytest.mark.slow
def test_nothing_is_scaled_where_no_optimizer_looks(tmp_path: Path) -> None:
    under = planned("precise.py", "c", "--by-hand", folder=tmp_path / "plan", plan=FP16)
    without = plain("precise.py", "c", "--by-hand", folder=tmp_path / "plain")
    ours, expected = result(under, "c"), result(without, "c")
    assert ours["parameters"] == pytest.approx(expected["parameters"], abs=2e-3)
    (note,) = {note.text for note in under.of(events.NoteAdded) if note.subject == "loss scale"}
    assert note == "no optimizer of torch moves `model`: its loss is not scaled"


def test_masters_that_nothing_moves_are_said(tmp_path: Path) -> None:
    words = ("--by-hand", "--model", "own")
    under = planned("precise.py", "c", *words, folder=tmp_path, plan=MASTERS)
    (note,) = {note.text for note in under.of(events.NoteAdded) if note.subject == "masters"}
    assert note == "no optimizer of torch moves `model`: its masters do nothing"


@pytest.mark.slow
@pytest.mark.parametrize("plan", [MASTERS, LOW], ids=["eager", "compiled"])
def test_a_model_of_float_inputs_with_a_frozen_layer(tmp_path: Path, plan: str) -> None:
    words = ("precise.py", "c", "--model", "plain")
    under = planned(*words, folder=tmp_path / "plan", plan=plan)
    without = plain(*words, folder=tmp_path / "plain")
    ours, expected = result(under, "c"), result(without, "c")
    assert set(ours["formats"]) == {"torch.bfloat16"}
    assert ours["parameters"] == pytest.approx(expected["parameters"], abs=0.02)


def test_ranks_with_seeds_of_their_own_have_the_masters_of_the_first(tmp_path: Path) -> None:
    """DDP gives every rank the parameters of rank 0; their low bits are in the masters."""
    words = ("--model", "own", "--own-seed", "--save", "kept.pt", "--save-each")
    job = planned("precise.py", "c", *words, folder=tmp_path, plan=MASTERS)
    first, second = (torch.load(job.folder / f"{rank}-kept.pt") for rank in (0, 1))
    assert "sgplan.masters" in first["optimizer"]
    same(first, second)
