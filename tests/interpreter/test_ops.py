from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import library

from sgplan.interpreter import gate, ops
from sgplan.interpreter.gate import Opening, Owner

assert ops.__doc__  # imported for the op it registers

READY = torch.ops.sgplan.ready.default
CHANNELS_LAST = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)


def arguments(*grads: torch.Tensor) -> tuple[Any, ...]:
    strides = [stride for grad in grads for stride in grad.stride()]
    return list(grads), list(range(len(grads))), strides


class Recorder:
    """Takes gradients over and counts."""

    def __init__(self, slot: torch.Tensor) -> None:
        self.slot = slot
        self.taken: list[list[int]] = []

    def batch(self, indices: list[int]) -> list[int]:
        return indices

    def take(self, batch: list[int], grads: list[torch.Tensor], began: float) -> list[torch.Tensor]:
        self.taken.append(batch)
        return [self.slot.copy_(grad) for grad in grads]


@pytest.mark.parametrize(
    "grads",
    [
        (torch.randn(3, 4), torch.randn(4), torch.tensor(2.0)),
        (CHANNELS_LAST,),
        (torch.randn(3, 4, dtype=torch.float64).t(),),
        (torch.randn(0, 4),),
    ],
    ids=["ranks", "channels_last", "transposed", "empty"],
)
def test_the_op_keeps_its_contract(grads: tuple[torch.Tensor, ...]) -> None:
    library.opcheck(READY, arguments(*grads), test_utils=("test_schema", "test_faketensor"))


def test_without_an_owner_the_result_is_an_independent_copy() -> None:
    grad = torch.randn(3, 4)
    (slot,) = READY(*arguments(grad))
    assert torch.equal(slot, grad)
    before = slot.clone()
    grad.zero_()  # as Inductor does when it uses the memory again
    assert torch.equal(slot, before)


def test_a_copy_has_the_parameters_strides_and_not_the_gradients() -> None:
    contiguous = CHANNELS_LAST.contiguous()
    (slot,) = READY([contiguous], [0], list(CHANNELS_LAST.stride()))
    assert slot.stride() == CHANNELS_LAST.stride()
    assert torch.equal(slot, contiguous)


def opened_for(monkeypatch: pytest.MonkeyPatch, recorder: Any, *places: int) -> None:
    opening = Opening({place: Owner(recorder, place) for place in places})
    monkeypatch.setattr(gate, "_open", {None: opening})  # no node runs


def test_an_owner_takes_all_its_gradients_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(torch.zeros(4))
    opened_for(monkeypatch, recorder, 0, 1)
    first, second = READY(*arguments(torch.ones(4), torch.full((4,), 2.0)))
    assert first.data_ptr() == second.data_ptr() == recorder.slot.data_ptr()
    assert recorder.taken == [[0, 1]]


def test_what_no_owner_takes_is_copied_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(torch.zeros(4))
    opened_for(monkeypatch, recorder, 0, 2)
    first, second, third = READY(*arguments(torch.ones(4), torch.full((4,), 2.0), torch.ones(4)))
    assert first.data_ptr() == third.data_ptr() == recorder.slot.data_ptr()
    assert second.data_ptr() != recorder.slot.data_ptr()
    assert second.eq(2).all()
    assert recorder.taken == [[0, 2]]


def test_outside_of_a_backward_nobody_owns() -> None:
    assert gate.division_of(None, [0]) is None
    (slot,) = READY(*arguments(torch.ones(2)))
    assert slot.eq(1).all()
