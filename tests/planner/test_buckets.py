"""The bucket list: what it depends on, where it cuts, how it lays gradients out."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sgplan.planner.buckets import ALIGNMENT, bucket_list
from sgplan.planner.facts import ParameterFact
from sgplan.planner.program import Bucket

from .build import ITEMSIZE, parameter

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}

shapes = st.lists(st.integers(1, 40), max_size=3).map(tuple)
parameter_lists = st.lists(st.tuples(shapes, st.sampled_from(sorted(DTYPES))), max_size=20).map(
    lambda many: [parameter(f"p{i}", *shape, dtype=dtype) for i, (shape, dtype) in enumerate(many)]
)
caps = st.integers(1, 20_000)


def _stock(tensors: list[torch.Tensor], caps: list[int]) -> list[list[int]]:
    """What stock DDP's own function says."""
    compute = torch.distributed._compute_bucket_assignment_by_size  # pyright: ignore[reportPrivateImportUsage]
    return compute(tensors, caps)[0]


def indices(buckets: tuple[Bucket, ...]) -> list[list[int]]:
    return [[slot.index for slot in bucket.slots] for bucket in buckets]


@given(parameter_lists, caps, caps)
def test_every_gradient_is_in_exactly_one_bucket(
    parameters: list[ParameterFact], bucket: int, first: int
) -> None:
    found = bucket_list("m", parameters, bucket=bucket, first_bucket=first)
    flat = [index for members in indices(found) for index in members]
    assert sorted(flat) == list(range(len(parameters)))


@given(parameter_lists, caps, caps)
def test_the_cuts_are_those_of_torch(
    parameters: list[ParameterFact], bucket: int, first: int
) -> None:
    found = bucket_list("m", parameters, bucket=bucket, first_bucket=first)
    tensors = [torch.empty(p.shape, dtype=DTYPES[p.dtype]) for p in reversed(parameters)]
    last = len(parameters) - 1
    stock = _stock(tensors, [first, bucket]) if tensors else []
    assert sorted(indices(found)) == sorted([last - i for i in members] for members in stock)


@given(parameter_lists, caps, caps)
def test_slots_are_aligned_and_do_not_overlap(
    parameters: list[ParameterFact], bucket: int, first: int
) -> None:
    for found in bucket_list("m", parameters, bucket=bucket, first_bucket=first):
        end = 0
        for slot in found.slots:
            assert slot.offset * ITEMSIZE[found.dtype] % ALIGNMENT == 0
            assert slot.offset >= end
            end = slot.offset + parameters[slot.index].numel
        assert end <= found.numel
        assert found.nbytes == sum(parameters[slot.index].nbytes for slot in found.slots)


@given(parameter_lists, caps, caps)
def test_buckets_start_in_the_order_in_which_they_fill(
    parameters: list[ParameterFact], bucket: int, first: int
) -> None:
    found = bucket_list("m", parameters, bucket=bucket, first_bucket=first)
    lasts = [min(members) for members in indices(found)]
    assert lasts == sorted(lasts, reverse=True)


def test_the_first_bucket_closes_earlier() -> None:
    parameters = [parameter(f"p{i}", 256) for i in range(8)]  # 1 KiB each
    found = bucket_list("m", parameters, bucket=4096, first_bucket=1024)
    assert indices(found) == [[7], [6, 5, 4, 3], [2, 1, 0]]
    assert [bucket.name for bucket in found] == ["b0", "b1", "b2"]


def test_names_go_on_where_the_last_root_ended() -> None:
    found = bucket_list("d", [parameter("w", 4)], bucket=1, first_bucket=1, number=3)
    assert [bucket.name for bucket in found] == ["b3"]


def test_a_dense_parameter_keeps_its_strides() -> None:
    channels_last = ParameterFact("w", (4, 3, 2, 2), (12, 1, 6, 3), "f32", "cpu", 4)
    found = bucket_list("m", [channels_last], bucket=1, first_bucket=1)
    assert found[0].slots[0].strides == (12, 1, 6, 3)


def test_a_parameter_with_holes_becomes_contiguous() -> None:
    expanded = ParameterFact("w", (4, 3), (0, 1), "f32", "cpu", 4, dense=False)
    found = bucket_list("m", [expanded], bucket=1, first_bucket=1)
    assert found[0].slots[0].strides == (3, 1)


def test_a_wire_dtype_that_saves_nothing_is_not_used() -> None:
    mixed = [parameter("a", 8), parameter("b", 8, dtype="bf16"), parameter("c", 8, dtype="f64")]
    found = bucket_list("m", mixed, bucket=1, first_bucket=1, wire="bf16")
    assert [(b.dtype, b.wire) for b in found] == [
        ("f64", "bf16"),
        ("bf16", "bf16"),
        ("f32", "bf16"),
    ]
    half = bucket_list("m", mixed, bucket=1, first_bucket=1, wire="f16")
    assert [(b.dtype, b.wire) for b in half][1] == ("bf16", "bf16")
