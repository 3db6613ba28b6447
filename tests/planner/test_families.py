"""Op families: the language's list, real op names, and what does not belong."""

from __future__ import annotations

import pytest

from sgplan.grammar import selectors
from sgplan.planner.families import FAMILIES, LAYOUT, MEMBERS, families_of, is_layout

# Higher-order or device-only ops, which the dispatcher of this build does not list.
ELSEWHERE = {"flex_attention", "flex_attention_backward", "philox_rand"}


def known_names() -> set[str]:
    """Names of torch's ops, in-place ones without their underscore."""
    import torch._inductor.inductor_prims

    names = torch._C._dispatch_get_all_op_names()  # pyright: ignore[reportAttributeAccessIssue]
    bare = {name.split("::")[1].split(".")[0] for name in names if not name.startswith("sgplan")}
    return bare | {name.rstrip("_") for name in bare}


# Inductor's first import uses parts of torch that torch itself deprecates.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_every_member_is_an_op_of_torch() -> None:
    members = {name for group in (*MEMBERS.values(), LAYOUT) for name in group}
    assert members - known_names() - ELSEWHERE == set()


def test_the_families_are_those_of_the_language() -> None:
    assert set(FAMILIES) == set(selectors.FAMILIES)


@pytest.mark.parametrize(
    ("op", "families"),
    [
        ("aten.addmm.default", ("matmul", "bias")),
        ("aten::addmm", ("matmul", "bias")),
        ("aten.mm.default", ("matmul",)),
        ("aten.add_.Tensor", ("pointwise",)),
        ("aten.native_dropout.default", ("dropout", "random")),
        ("aten.var_mean.correction", ("norm", "reduction")),
        ("prims.convert_element_type.default", ("pointwise",)),
        ("higher_order::flex_attention", ("attention",)),
        ("mylib::sum.default", ()),
        ("aten.view.default", ()),
        ("relu", ()),
    ],
)
def test_an_op_belongs_to_its_families(op: str, families: tuple[str, ...]) -> None:
    assert families_of(op) == families


def test_layout_ops_are_told_apart() -> None:
    assert is_layout("aten.permute.default")
    assert not is_layout("aten.clone.default")
