from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from sgplan.interpreter import roots
from sgplan.interpreter.roots import RootNames

from .world import plan


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 2)
        self.b = nn.Linear(2, 3)
        self.b.weight = nn.Parameter(torch.zeros(3, 2).t().contiguous().t())


class Other(nn.Module):
    pass


NET = f"{Net.__module__}:{Net.__qualname__}"


def names(module: nn.Module, *ignored: str) -> list[str]:
    return [name for name, _ in roots.trainable(module, ignored)]


def test_parameters_come_in_registration_order() -> None:
    assert names(Net()) == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_frozen_ignored_and_repeated_parameters_are_left_out() -> None:
    net = Net()
    net.a.bias.requires_grad_(False)
    net.tied = net.a
    assert names(net, "b.bias") == ["a.weight", "b.weight"]


def test_a_parameter_of_the_root_itself_can_be_ignored() -> None:
    net = Net()
    net.scale = nn.Parameter(torch.ones(1))
    # DDP's own spelling of such a name has a leading dot.
    assert "scale" in names(net)
    assert "scale" not in names(net, ".scale")


def test_the_compilers_wrapper_is_in_no_name() -> None:
    wrapped: Any = torch.compile(Net(), backend="eager")
    assert names(wrapped) == names(Net())
    inner: Any = torch.compile(nn.Linear(2, 2), backend="eager")
    outer = nn.Sequential(inner)
    assert names(outer) == ["0.weight", "0.bias"]


def test_checkpoint_wrappers_are_in_no_name() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    outer = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)))
    assert names(outer) == ["0.weight", "0.bias"]


def test_a_submodule_the_script_calls_module_keeps_its_name() -> None:
    net = Net()
    net.module = nn.Linear(2, 2)
    assert names(net)[-2:] == ["module.weight", "module.bias"]
    owned = roots.Owned(net, roots.trainable(net))
    fact = roots.Root("model", owned, "module", "eager", "none", "a test").fact()
    assert ("module", "Linear") in fact.modules


def test_a_root_does_not_keep_its_module_alive() -> None:
    net = Net()
    root = roots.Root(
        "model", roots.Owned(net, roots.trainable(net)), "module", "eager", "none", ""
    )
    before = root.fact()
    del net
    gc.collect()
    assert root.parameters == []
    assert root.fact() == before


def test_unwrapping_finds_the_scripts_own_module() -> None:
    net = Net()
    wrapped: Any = torch.compile(net, backend="eager")
    assert roots.unwrapped(wrapped) is net
    assert roots.unwrapped(net) is net


def test_a_parameter_as_a_fact() -> None:
    fact = roots.parameter_fact("b.weight", Net().b.weight)
    assert (fact.shape, fact.strides, fact.dtype, fact.dense) == ((3, 2), (1, 3), "f32", True)
    assert roots.parameter_fact("x", torch.zeros(2, dtype=torch.int64)).dtype == "int64"


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((), (), True),
        ((1, 3), (77, 1), True),
        ((2, 3), (4, 1), False),
        ((2, 3), (0, 1), False),
    ],
)
def test_dense_means_neither_holes_nor_overlap(
    shape: tuple[int, ...], strides: tuple[int, ...], dense: bool
) -> None:
    assert roots.dense(shape, strides) is dense


def test_roots_without_a_block_are_numbered() -> None:
    found = RootNames(())
    assert [found.name(Net()) for _ in range(3)] == ["model", "model1", "model2"]


def test_a_model_block_names_its_class() -> None:
    found = RootNames(plan(f'model "net" {{ is = "{NET}" }}').models)
    assert [found.name(m) for m in (Other(), Net())] == ["model", "net"]
    assert not list(found.unmatched())


def test_nth_counts_the_modules_of_the_class() -> None:
    body = f"""
    model "first" {{ is = "{NET}" }}
    model "third" {{ is = "{NET}"  nth = 2 }}
    """
    found = RootNames(plan(body).models)
    assert [found.name(Net()) for _ in range(4)] == ["first", "model", "third", "model1"]


def test_a_block_that_names_nothing_is_known() -> None:
    found = RootNames(plan('model "net" { is = "train:Net" }').models)
    found.name(Other())
    assert [model.label for model in found.unmatched()] == ["net"]


def test_the_scripts_file_name_stands_for_main(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    main = types.ModuleType("__main__")
    main.__file__ = "/somewhere/train.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    cls = type("Net", (nn.Module,), {"__module__": "__main__"})
    assert roots.names_class("train:Net", cls)
    assert roots.names_class("__main__:Net", cls)
    assert not roots.names_class("other:Net", cls)


def test_the_first_tensor_is_found_in_lists_dicts_and_keywords() -> None:
    x, y = torch.ones(1), torch.ones(2)
    assert roots.first_tensor((1, [2, x]), {"y": y}) is x
    assert roots.first_tensor((), {"batch": {"ids": y}}) is y
    assert roots.first_tensor((1,), {}) is None
