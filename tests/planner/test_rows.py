"""Which graphs let rows be added to an input, and which op is named where they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgplan.planner import torch_api
from sgplan.planner.capture.rows import Inputs, NotProved, Outcome, Rows, prove

SIZE = 6


class Call(nn.Module):
    """A function of the input and of two parameters, as a module whose call is captured."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.positions = nn.Parameter(torch.ones(16, 4))

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


class Traced(BaseException):
    pass


@pytest.fixture(autouse=True)
def _dynamo(fresh_dynamo: None) -> None:
    torch_api.tell_equal_sizes_apart()


def proof(
    function: Callable[..., Any], *inputs: Tensor, dim: int = 0, ignore: int | None = None,
    zero: tuple[int, ...] = (),
) -> Outcome:  # fmt: skip
    """The proof for a function whose inputs all have their rows in `dim`."""
    call = torch_api.wrap_inline(Call(function), "proof")
    sources = {f"L['args'][{n}]": [d == dim for d in range(x.dim())] for n, x in enumerate(inputs)}
    torch_api.varies(call, sources)
    found: list[Outcome] = []
    refused: list[NotProved] = []

    def backend(gm: Any, _: Any) -> Any:
        places = [n for n in gm.graph.nodes if n.op == "placeholder"]
        given = {
            i: int(torch_api.input_source(n)[len("L['args'][") : -1])
            for i, n in enumerate(places)
            if torch_api.input_source(n) in sources
        }
        rows = {i: Rows(dim, zero=place in zero) for i, place in given.items()}
        labels = frozenset(i for i, place in given.items() if ignore is not None and place == 1)
        try:
            found.append(prove(gm, Inputs(rows, frozenset(rows), labels, ignore)))
        except NotProved as error:
            refused.append(error)
        raise Traced

    with pytest.raises(Traced):
        torch.compile(call, backend=backend, fullgraph=True)(*inputs)
    if refused:
        raise refused[0]
    return found[0]


X = torch.randn(SIZE, 4)
SEQ = torch.randn(3, SIZE, 4)


@pytest.mark.parametrize(
    ("function", "inputs", "dim", "rows"),
    [
        (lambda m, x: F.gelu(x @ m.weight) + m.weight[0], (X,), 0, Rows(0)),
        (lambda m, x: F.layer_norm(x, (4,)).t(), (X,), 0, Rows(1)),
        (lambda m, x: x.reshape(-1, 4), (SEQ,), 1, Rows(0, outer=3)),
        (lambda m, x: (x @ m.weight).view(-1), (X,), 0, Rows(0, inner=4)),
        (lambda m, x: x + m.positions[: x.shape[1]], (SEQ,), 1, Rows(1)),
        (lambda m, x: x + m.positions[torch.arange(x.shape[1])], (SEQ,), 1, None),
        (lambda m, x: F.softmax(x, -1).mean(-1), (X,), 0, Rows(0)),
    ],
)
def test_rows_are_followed(
    function: Any, inputs: tuple[Tensor, ...], dim: int, rows: Rows | None
) -> None:
    if rows is None:
        with pytest.raises(NotProved, match=r"aten\.index"):
            proof(function, *inputs, dim=dim)
        return
    assert [found for _, found in proof(function, *inputs, dim=dim).outputs] == [rows]


@pytest.mark.parametrize(
    ("function", "inputs", "dim", "op"),
    [
        (lambda m, x: x - x.mean(0), (X,), 0, r"`aten\.mean` reduces over the rows"),
        (lambda m, x: x / x.shape[0], (X,), 0, r"`aten\.div` computes with the number of rows"),
        (lambda m, x: x if x.shape[0] > 5 else -x, (X,), 0, "decides by the number of rows"),
        (lambda m, x: x.t() @ x, (X,), 0, r"`aten\.mm` multiplies along the rows"),
        (lambda m, x: F.dropout(x), (X,), 0, "random numbers"),
        (lambda m, x: F.softmax(x, 0), (X,), 0, r"`aten\._softmax` works along the rows"),
        (lambda m, x: F.batch_norm(x, None, None, training=True), (X,), 0, "no op that the proof"),
        (lambda m, x: x.flip(0), (X,), 0, r"`aten\.flip` is no op"),
        (lambda m, x: x + torch.arange(x.shape[0], 0, -1)[:, None], (X,), 0, r"aten\.arange"),
    ],
)
def test_an_op_that_mixes_rows_is_named(
    function: Any, inputs: tuple[Tensor, ...], dim: int, op: str
) -> None:
    with pytest.raises(NotProved, match=op):
        proof(function, *inputs, dim=dim)


def test_rows_that_are_zero_may_be_summed() -> None:
    def pooled(m: Call, x: Tensor, mask: Tensor) -> Tensor:
        return (torch.tanh(x @ m.weight) * mask[:, None]).sum(0) / mask.sum()

    assert proof(pooled, X, torch.ones(SIZE), zero=(1,)).outputs == (((4,), None),)
    with pytest.raises(NotProved, match=r"aten\.sum"):
        proof(pooled, X, torch.ones(SIZE))


def test_a_loss_that_ignores_the_label_of_added_rows() -> None:
    def loss(m: Call, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(x @ m.weight, labels)

    labels = torch.zeros(SIZE, dtype=torch.long)
    assert proof(loss, X, labels, ignore=-100).outputs == (((), None),)
    with pytest.raises(NotProved, match="ignore"):
        proof(loss, X, labels)
    with pytest.raises(NotProved, match="ignore"):
        proof(loss, X, labels, ignore=-1)
