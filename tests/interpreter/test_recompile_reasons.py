"""Dynamo's words for a failed guard, read on reasons that Dynamo gives in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sgplan.interpreter.recompile_reasons import Cause, causes
from sgplan.planner import torch_api


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind = "plain"

    def forward(self, x: Tensor) -> Tensor:
        return x * len(self.kind)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])
        self.counter = 0

    def forward(self, x: Tensor, heat: float = 1.0) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * heat + self.counter


def second(first: Callable[[Any, Net], Any], then: Callable[[Any, Net], Any]) -> Cause:
    """Why the second of two calls was compiled."""
    torch._dynamo.reset()
    net, reasons = Net(), list[str]()

    def backend(gm: Any, inputs: Any) -> Any:
        found = torch_api.compiling_frame()
        assert found is not None
        reasons.append(found[1])
        return gm.forward

    call = torch.compile(torch_api.wrap_inline(net), backend=backend)
    first(call, net)
    then(call, net)
    (_, reason) = reasons
    return next(causes(reason))


X = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("first", "then", "path", "old", "new"),
    [
        (lambda c, n: c(X), lambda c, n: c(X[:2]), "input[0].shape[0]", 4, 2),
        (lambda c, n: c(X), lambda c, n: c(X.double()), "input[0].dtype", "float32", "float64"),
        (lambda c, n: c(x=X), lambda c, n: c(x=X[:, :2]), 'input["x"].shape[1]', 3, 2),
        (lambda c, n: c(X, heat=2.0), lambda c, n: c(X, heat=1.5), 'input["heat"]', 2.0, None),
        (
            lambda c, n: c(X),
            lambda c, n: (setattr(n, "counter", 7), c(X)),
            "module.counter",
            0,
            None,
        ),
        (
            lambda c, n: c(X),
            lambda c, n: (setattr(n.layers[1], "kind", "other"), c(X)),
            'module["layers.1"].kind',
            "plain",
            None,
        ),
    ],
)
def test_a_reason_becomes_a_path_of_the_language(
    first: Any, then: Any, path: str, old: Any, new: Any
) -> None:
    cause = second(first, then)
    assert (str(cause.path), cause.old, cause.new) == (path, old, new)


def test_the_line_of_the_script_is_found() -> None:
    cause = second(lambda c, n: c(X), lambda c, n: (setattr(n, "counter", 7), c(X)))
    assert cause.where.startswith("test_recompile_reasons.py:")


def test_what_no_path_names_keeps_its_words() -> None:
    def without(call: Any, net: Net) -> None:
        with torch.no_grad():
            call(X)

    cause = second(lambda c, n: c(X), without)
    assert cause.path is None
    assert cause.watched == "grad_mode"
