"""Which graphs let rows be added to an input, and which op is named where they do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, library, nn

from sgplan.planner import torch_api
from sgplan.planner.capture.rows import ANY, NotProved, Outcome, Range, Rows, prove

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


# Dynamo makes an object of every autograd function that it meets.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _dynamo(fresh_dynamo: None) -> None:
    torch_api.tell_equal_sizes_apart()


def proof(
    function: Callable[..., Any],
    *inputs: Tensor,
    dim: int = 0,
    fill: float | tuple[float, ...] | None = None,
    infinite: tuple[int, ...] | None = None,
) -> Outcome:
    """The proof for a function whose inputs all have their rows in `dim`.

    Args:
        fill: what the added rows of the last inputs hold; the others may hold anything.
        infinite: shape of the parameters that are not finite.
    """
    given = fill if isinstance(fill, tuple) else (fill,)
    given = (*[None] * (len(inputs) - len(given)), *given)
    fills = [ANY if value is None else Range(value, value) for value in given]
    found: list[Outcome | NotProved] = []

    def backend(gm: Any, _: Any) -> Any:
        sources = [torch_api.input_source(n) for n in gm.graph.nodes if n.op == "placeholder"]
        rows = {
            sources.index(f"L['args'][{place}]"): Rows(dim, added=added)
            for place, added in enumerate(fills)
        }
        nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
        shapes = [getattr(torch_api.input_value(node), "shape", None) for node in nodes]
        named = [n for n, shape in enumerate(shapes) if shape is not None and shape == infinite]
        try:
            found.append(prove(gm, rows, named))
        except NotProved as error:
            found.append(error)
        raise Traced

    call = torch_api.wrap_aliased(Call(function), "proof")
    with pytest.raises(Traced):
        torch.compile(call, backend=backend, fullgraph=True, dynamic=False)(
            *(torch_api.open_size(x, dim) for x in inputs)
        )
    if isinstance(found[0], NotProved):
        raise found[0]
    return found[0]


X = torch.randn(SIZE, 4)
SEQ = torch.randn(3, SIZE, 4)


IMAGES = torch.randn(SIZE, 3, 8, 8)
IDS = torch.zeros(SIZE, 3, dtype=torch.long)
HEADS = torch.randn(SIZE, 2, 5, 4)


class Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] - gradients[0].mean(0)


@pytest.mark.parametrize(
    ("function", "inputs", "dim", "rows"),
    [
        (lambda m, x: F.gelu(x @ m.weight) + m.weight[0], (X,), 0, (0, 1, 1)),
        (lambda m, x: F.layer_norm(x, (4,)).t(), (X,), 0, (1, 1, 1)),
        (lambda m, x: x.reshape(-1, 4), (SEQ,), 1, (0, 3, 1)),
        (lambda m, x: (x @ m.weight).view(-1), (X,), 0, (0, 1, 4)),
        (lambda m, x: x + m.positions[: x.shape[1]], (SEQ,), 1, (1, 1, 1)),
        (lambda m, x: F.softmax(x, -1).mean(-1), (X,), 0, (0, 1, 1)),
        (lambda m, x: m.positions[: 2 * (x.shape[0] // 1)] * 1, (X[:2],), 0, None),
        (lambda m, x: m.weight[0].expand(x.shape[0], -1) + x, (X,), 0, (0, 1, 1)),
        (lambda m, x: torch.cat([x, m.weight[:1].expand(x.shape[0], -1)], 1), (X,), 0, (0, 1, 1)),
        (
            lambda m, x: torch.cat([m.weight[:1].expand(x.shape[0], 1, 4), x], 1),
            (SEQ,),
            0,
            (0, 1, 1),
        ),
        (lambda m, x: F.conv2d(x, m.weight[:3, :3].expand(2, 3, 3, 3)), (IMAGES,), 0, (0, 1, 1)),
        (lambda m, x: F.max_pool2d(F.relu(x), 2).flatten(1), (IMAGES,), 0, (0, 1, 1)),
        (lambda m, x: F.embedding(x.clamp(0, 15), m.positions).sum(1), (IDS,), 0, (0, 1, 1)),
        (
            lambda m, x: x + F.embedding(torch.arange(x.shape[0]), m.positions),
            (X,),
            0,
            (0, 1, 1),
        ),
        (lambda m, x: F.scaled_dot_product_attention(x, x, x), (HEADS,), 0, (0, 1, 1)),
        (lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6), (X,), 0, (0, 1, 1)),
        (lambda m, x: x / x.abs().sum(-1, True).clamp(min=1e-3), (X,), 0, (0, 1, 1)),
        (lambda m, x: torch.arange(x.shape[0])[:, None] * x, (X,), 0, (0, 1, 1)),
        (lambda m, x: x.masked_fill(m.weight[0] > 0, -torch.inf).softmax(-1), (X,), 0, (0, 1, 1)),
    ],
)
def test_rows_are_followed(
    function: Any, inputs: tuple[Tensor, ...], dim: int, rows: tuple[int, int, int] | None
) -> None:
    if rows is None:
        with pytest.raises(NotProved, match="number of rows"):
            proof(function, *inputs, dim=dim)
        return
    ((_, found),) = proof(function, *inputs, dim=dim).outputs
    assert found is not None
    assert found.place == rows


ROWS = "with the number of rows"
NOT_FINITE = "no finite derivative"


@pytest.mark.parametrize(
    ("function", "inputs", "dim", "op"),
    [
        (lambda m, x: x - x.mean(0), (X,), 0, r"`aten\.mean` reduces over the rows"),
        (lambda m, x: x / x.shape[0], (X,), 0, r"`aten\.div` computes with the number of rows"),
        (lambda m, x: x if x.shape[0] > 5 else -x, (X,), 0, "decides by the number of rows"),
        (lambda m, x: x.t() @ x, (X,), 0, r"`aten\.mm` multiplies along the rows"),
        (lambda m, x: F.dropout(x), (X,), 0, "random numbers"),
        (lambda m, x: F.softmax(x, 0), (X,), 0, r"`aten\._softmax` works along the rows"),
        (lambda m, x: F.batch_norm(x, None, None, training=True), (X,), 0, "across the rows"),
        (lambda m, x: x.flip(0), (X,), 0, r"`aten\.flip` is no op"),
        (lambda m, x: x.relu_(), (X,), 0, r"`aten\.relu_` is no op"),
        (lambda m, x: x[1:], (X,), 0, r"`aten\.slice` works along the rows"),
        (lambda m, x: x + m.positions[torch.arange(x.shape[1])], (SEQ,), 1, r"aten\.index"),
        (lambda m, x: x + torch.arange(x.shape[0], 0, -1)[:, None], (X,), 0, r"aten\.arange"),
        # What computes with the number of rows, in places that look like shapes.
        (lambda m, x: x * torch.full((x.shape[0], 1), 1 / x.shape[0]), (X,), 0, ROWS),
        (lambda m, x: x * torch.full((x.shape[0], 1), float(x.shape[0])), (X,), 0, ROWS),
        (lambda m, x: x[:, :1].expand(x.shape[0], x.shape[0]).sum(1), (X,), 0, ROWS),
        (lambda m, x: x[:, : x.shape[0]].sum(1), (torch.randn(SIZE, 9),), 0, ROWS),
        (lambda m, x: m.positions[: x.shape[0], : x.shape[0]].sum(1), (X[:3],), 0, ROWS),
        (lambda m, x: x + torch.ones(2, x.shape[0]).sum(1).sum(), (X,), 0, "over the rows"),
        # What leaves the call.
        (lambda m, x: (x * 2, x.shape[0]), (X,), 0, "stores the number of rows"),
        (lambda m, x: (x * 2, x), (X,), 0, "an argument as it is"),
        # Gradients of added rows that are not zero.
        (lambda m, x: x / x.sum(-1, True), (X,), 0, "divides by what may be zero"),
        (lambda m, x: 1 / x, (X,), 0, r"`aten\.reciprocal` divides"),
        (lambda m, x: (x @ m.weight).square().sum(-1).sqrt(), (X,), 0, NOT_FINITE),
        (lambda m, x: (x @ m.weight).exp().log(), (X,), 0, NOT_FINITE),
        (lambda m, x: x.abs().pow(0.5), (X,), 0, NOT_FINITE),
        (lambda m, x: F.layer_norm(x, (4,), eps=0.0), (X,), 0, NOT_FINITE),
        (lambda m, x: x.masked_fill(x > 0, -torch.inf).softmax(-1), (X,), 0, "not finite"),
        (lambda m, x: Centred.apply(x @ m.weight), (X,), 0, "backward of its own"),
    ],
)
def test_an_op_that_mixes_rows_is_named(
    function: Any, inputs: tuple[Tensor, ...], dim: int, op: str
) -> None:
    with pytest.raises(NotProved, match=op):
        proof(function, *inputs, dim=dim)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_on_a_gpu_takes_no_dropout(dropout: float) -> None:
    def efficient(m: Call, x: Tensor) -> Tensor:
        attention = torch.ops.aten._scaled_dot_product_efficient_attention
        return attention(x, x, x, None, False, dropout)[0]

    if dropout:
        with pytest.raises(NotProved, match="random numbers"):
            proof(efficient, HEADS)
    else:
        assert [rows and rows.dim for _, rows in proof(efficient, HEADS).outputs] == [0]


def test_a_hook_on_a_gradient_is_not_read() -> None:
    def hooked(m: Call, x: Tensor) -> Tensor:
        h = x @ m.weight
        h.register_hook(lambda gradient: gradient - gradient.mean(0))
        return h

    with pytest.raises(NotProved, match="a hook reads or changes a gradient"):
        proof(hooked, X)


def test_a_function_with_a_backward_of_its_own_may_take_parameters() -> None:
    found = proof(lambda m, x: x @ Centred.apply(m.weight), X)
    assert [rows and rows.place for _, rows in found.outputs] == [(0, 1, 1)]


def test_outputs_are_known_by_their_place() -> None:
    square = torch.randn(4, 4)
    found = proof(lambda m, x: (x @ m.weight, (x @ m.weight).t(), m.weight * 2), square)
    assert [rows and rows.dim for _, rows in found.outputs] == [0, 1, None]
    assert len({shape for shape, _ in found.outputs}) == 1


def test_rows_that_are_zero_may_be_summed() -> None:
    def pooled(m: Call, x: Tensor, mask: Tensor) -> Tensor:
        return (torch.tanh(x @ m.weight) * mask[:, None]).sum(0) / mask.sum()

    assert proof(pooled, X, torch.ones(SIZE), fill=0).outputs == (((4,), None),)
    with pytest.raises(NotProved, match=r"aten\.sum"):
        proof(pooled, X, torch.ones(SIZE))


def test_rows_that_a_condition_takes_out_may_be_summed() -> None:
    def pooled(m: Call, x: Tensor, ids: Tensor) -> Tensor:
        return (x @ m.weight).masked_fill((ids == 3)[:, None], 0.0).sum(0)

    ids = torch.zeros(SIZE, dtype=torch.long)
    assert proof(pooled, X, ids, fill=3).outputs == (((4,), None),)
    with pytest.raises(NotProved, match=r"aten\.sum"):
        proof(pooled, X, ids, fill=2)


def test_inputs_that_go_together_are_of_one_size() -> None:
    def joined(m: Call, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.view(-1) + y.view(-1), x + y

    found = proof(joined, X, X.clone())
    assert [rows and rows.place for _, rows in found.outputs] == [(0, 1, 4), (0, 1, 1)]


def test_what_cancels_is_not_taken_for_zero() -> None:
    with pytest.raises(NotProved, match=r"aten\.sum"):
        proof(lambda m, x: (x / 3 * 3 - 1).sum(0), X, fill=1)


def test_an_index_that_added_rows_would_look_up_is_checked() -> None:
    assert proof(lambda m, x: F.embedding(x, m.positions), IDS, fill=3).outputs
    with pytest.raises(NotProved, match=r"`aten\.embedding` may have no row"):
        proof(lambda m, x: F.embedding(x, m.positions), IDS, fill=-100)


@pytest.mark.parametrize(
    ("function", "x", "fill"),
    [
        (lambda m, x: F.embedding(x - 4, m.positions), IDS, 3),
        (lambda m, x: F.embedding(-x, m.positions), IDS, 3),
        (lambda m, x: F.embedding(x.long(), m.positions), torch.ones(SIZE), 77.5),
        (lambda m, x: F.embedding(torch.arange(x.shape[0]), m.positions) + x, torch.ones(17, 4), 0),
    ],
)
def test_an_index_that_is_computed_is_checked(function: Any, x: Tensor, fill: float) -> None:
    with pytest.raises(NotProved, match=r"`aten\.embedding` may have no row"):
        proof(function, x, fill=fill)


# --- what is not finite --------------------------------------------------------------------------

CUBE, MASK = torch.randn(SIZE, 4, 4), torch.ones(SIZE)
INF = math.inf


def hidden(x: Tensor, mask: Tensor, low: Tensor) -> Tensor:
    return torch.where(mask[:, None, None] > 0, x, low).softmax(-1)


def through_a_view(m: Call, x: Tensor, mask: Tensor) -> Tensor:
    low = torch.zeros(4, 4)
    low[:, :].fill_(-INF)
    return hidden(x @ m.weight, mask, low)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x, k: hidden(x @ m.weight, k, torch.tensor(-INF)),
        lambda m, x, k: (x @ m.weight).masked_fill(k[:, None, None] == 0, torch.tensor(-INF)),
        through_a_view,
        lambda m, x, k: (x @ m.weight) + torch.full((4, 4), -INF).triu(1) * k[:, None, None],
        lambda m, x, k: (x @ m.weight).masked_fill(m.positions[0] > 0, -INF) * k[:, None, None],
        lambda m, x, k: (
            (x @ m.weight).masked_fill(m.positions[0] > 0, -INF).log_softmax(-1) * k[:, None, None]
        ),
        lambda m, x, k: (x * k[:, None, None]) @ torch.full((4, 4), -INF).triu(1),
    ],
)
def test_an_infinity_does_not_meet_a_zero_or_fill_an_added_row(function: Any) -> None:
    with pytest.raises(NotProved, match="not finite"):
        proof(function, CUBE, MASK, fill=(0, 0))


def test_an_input_that_is_named_as_infinite_is_one() -> None:
    def call(m: Call, x: Tensor, k: Tensor) -> Tensor:
        return hidden(x @ m.weight, k, m.positions[:4])

    assert proof(call, CUBE, MASK, fill=(0, 0)).outputs
    with pytest.raises(NotProved, match="not finite"):
        proof(call, CUBE, MASK, fill=(0, 0), infinite=(16, 4))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda m, x: 1 / ((x @ m.weight).pow(2).sum(-1) + 1e-20), X),
        (lambda m, x: m.weight[0] / ((x @ m.weight).pow(2).sum(-1, True) + 1e-20), X),
        (lambda m, x: x * torch.rsqrt((x @ m.weight).pow(2).mean(-1, True) + 1e-30), X),
        (lambda m, x: x * ((x @ m.weight).pow(2).mean(-1, True) + 1e-30).pow(-0.5), X),
        (lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-4), X.half()),
        (lambda m, x: F.layer_norm(x @ m.weight, (4,), eps=1e-50), X),
        (lambda m, x: x / (x.abs() + 0.5).sum(-1, True, dtype=torch.int64), X),
        (lambda m, x: (x @ m.weight * 1j * (x @ m.weight) * 1j + 1).sqrt().abs(), X),
    ],
)
def test_a_derivative_has_to_be_finite_too(function: Any, x: Tensor) -> None:
    with pytest.raises(NotProved, match=r"derivative|divides|complex"):
        proof(function, x, fill=0)


def test_a_known_overflow_is_refused() -> None:
    with pytest.raises(NotProved, match=r"overflows `torch\.float16`"):
        proof(
            lambda m, x, k: (x + (1 - k[:, None, None]) * -1e9).softmax(-1),
            *(CUBE.half(), MASK.half()), fill=(0, 0),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "ids", "fill"),
    [
        (lambda i: i.to(torch.bfloat16) == 256, torch.full((SIZE,), 3), 257),
        (lambda i: i.float() == 2**24, torch.full((SIZE,), 3), 2**24 + 1),
        (lambda i: i * (7 / 13) != 7, torch.full((SIZE,), 3.0), 13),
        (lambda i: i * i == 16, torch.full((SIZE,), 3, dtype=torch.int8), 100),
        (lambda i: i.to(torch.uint8) == 156, torch.full((SIZE,), 3), -100),
        (lambda i: (0 - i) == 254, torch.full((SIZE,), 3, dtype=torch.uint8), 2),
        (lambda i: i == 300, torch.full((SIZE,), 3, dtype=torch.int8), 44),
    ],
)
def test_a_number_that_its_type_does_not_hold_is_not_known(
    condition: Any, ids: Tensor, fill: float
) -> None:
    with pytest.raises(NotProved, match=r"aten\.sum"):
        proof(
            lambda m, x, i: ((x @ m.weight) * condition(i).float()[:, None]).sum(0),
            *(X, ids), fill=(1, fill),
        )  # fmt: skip


@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "Autograd"])
def test_an_op_of_a_library_has_a_backward_that_is_not_read(key: str) -> None:
    name = f"sgplan_rows_{key.lower()}"
    own = library.Library(name, "DEF")
    own.define("centred(Tensor x) -> Tensor")
    if key == "Autograd":
        own.impl("centred", lambda x: x * 1, "CompositeExplicitAutograd")
    own.impl("centred", lambda x: Centred.apply(x), key)
    with pytest.raises(NotProved, match="backward of its own"):
        proof(lambda m, x: getattr(torch.ops, name).centred(x @ m.weight), X)


def test_a_loss_that_ignores_the_label_of_added_rows() -> None:
    def loss(m: Call, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(x @ m.weight, labels)

    labels = torch.zeros(SIZE, dtype=torch.long)
    assert proof(loss, X, labels, fill=-100).outputs == (((), None),)
    with pytest.raises(NotProved, match="ignore"):
        proof(loss, X, labels)
    with pytest.raises(NotProved, match="ignore"):
        proof(loss, X, labels, fill=-1)
