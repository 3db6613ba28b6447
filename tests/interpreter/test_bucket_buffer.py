from __future__ import annotations

import torch

from sgplan.interpreter.bucket_buffer import BucketBuffer
from sgplan.planner.buckets import bucket_list
from sgplan.planner.facts import ParameterFact


def parameter(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> ParameterFact:
    return ParameterFact(name, shape, strides, "f32", "cpu", 4)


PARAMETERS = (
    parameter("conv", (2, 3, 5, 5), (75, 1, 15, 3)),  # channels_last
    parameter("odd", (97,), (1,)),
    parameter("scalar", (), ()),
)


def opened() -> BucketBuffer:
    (bucket,) = bucket_list("model", PARAMETERS, bucket=1 << 20, first_bucket=1 << 20)
    buffer = BucketBuffer(bucket, torch.float32, torch.device("cpu"))
    buffer.open()
    return buffer


def test_views_have_the_parameters_strides_and_aligned_places() -> None:
    buffer = opened()
    by_name = dict(zip([s.parameter for s in buffer.bucket.slots], buffer.views, strict=True))
    assert by_name["conv"].stride() == (75, 1, 15, 3)
    assert by_name["scalar"].shape == ()
    start = buffer.flat.data_ptr()
    assert all((view.data_ptr() - start) % 64 == 0 for view in buffer.views)


def test_memory_is_used_again_when_nobody_holds_a_view() -> None:
    buffer = opened()
    flat = buffer.flat
    held = buffer.views[0].detach()
    del held
    where = flat.data_ptr()
    del flat
    buffer.open()
    assert buffer.flat.data_ptr() == where


def test_memory_somebody_holds_is_left_to_them() -> None:
    buffer = opened()
    buffer.views[1].fill_(3.0)
    held = buffer.views[1].detach()
    buffer.open()
    buffer.views[1].fill_(5.0)
    assert held.eq(3.0).all()


def test_a_view_of_a_view_counts_as_held() -> None:
    buffer = opened()
    held = buffer.views[1].detach()[3:7]
    where = buffer.flat.data_ptr()
    buffer.open()
    assert buffer.flat.data_ptr() != where
    assert held.shape == (4,)


def test_padding_stays_zero_when_every_gradient_is_filled() -> None:
    buffer = opened()
    for _ in range(2):
        for view in buffer.views:
            view.fill_(7.0)
        gradients = sum(view.numel() for view in buffer.views)
        assert buffer.flat.eq(7.0).sum() == gradients
        assert buffer.flat.eq(0.0).sum() == buffer.flat.numel() - gradients > 0
        buffer.open()


def test_arming_makes_all_gradients_missing_again() -> None:
    buffer = opened()
    buffer.missing = 0
    buffer.wire = buffer.flat.bfloat16()
    buffer.await_gradients()
    assert buffer.missing == 3
    assert buffer.wire is None
    assert buffer.sent is buffer.flat


def test_the_wire_buffer_is_what_is_sent() -> None:
    buffer = opened()
    buffer.wire = buffer.flat.bfloat16()
    assert buffer.sent is buffer.wire
