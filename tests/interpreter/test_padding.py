"""Padded calls against the plain ones: outputs, gradients, and what a call stores.

Calls run under a real plan in this process; graphs run as Dynamo captured them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from sgplan.interpreter import events
from sgplan.interpreter.compiling import Compiling
from sgplan.planner import torch_api

from .world import Kept, Left, rank_under

pytestmark = [
    pytest.mark.usefixtures("patched"),
    # Of Dynamo, about every input that requires a gradient and was computed.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

BATCH = 'guard "b" { on = input[0].shape[0]  allow = [8]  otherwise = pad(with = 0%s) }'
LENGTH = 'guard "l" { on = input[0].shape[1]  allow = [8]  otherwise = pad(with = 0%s) }'


def guarded(body: str, module: nn.Module, folder: Path) -> tuple[Callable[..., Any], Kept]:
    """A module's call under the guards of a plan; graphs run as they were captured."""
    torch_api.tell_equal_sizes_apart()
    rank, kept = rank_under(folder, body)
    compiling = Compiling(rank, None)  # pyright: ignore[reportArgumentType]

    def backend(gm: Any, inputs: Any) -> Any:
        rank.guards.graph(gm, inputs)
        return rank.guards.cutting.watched(gm.forward)

    call = compiling._compiled_call(module, {"backend": backend})
    return call, kept


class Call(nn.Module):
    """A function of the inputs and of some parameters, as a module whose call is captured."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.table = nn.Parameter(torch.randn(16, 4))
        self.last: Any = None
        self.seen = 0

    def forward(self, *inputs: Tensor, **options: Any) -> Any:
        return self.function(self, *inputs, **options)


def draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape) for shape in shapes]


def scored(result: Any) -> Tensor:
    """A number that hangs on every element of a result, differently on each."""
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return torch.stack([
        (leaf * torch.linspace(0.5, 1.5, leaf.numel()).view(leaf.shape)).sum()
        for leaf in leaves if leaf.is_floating_point()
    ]).sum()  # fmt: skip


def same_as_plain(
    body: str, module: nn.Module, folder: Path, exact: list[Tensor], ragged: list[Tensor],
    **options: Any,
) -> Kept:  # fmt: skip
    """A padded call gives what the plain call gives: results, their strides, and gradients."""
    plain = copy.deepcopy(module)
    call, kept = guarded(body, module, folder)
    call(*exact, **options)
    module.zero_grad()
    ours = [x.clone().requires_grad_(x.is_floating_point()) for x in ragged]
    theirs = [x.clone().requires_grad_(x.is_floating_point()) for x in ragged]
    result, expected = call(*ours, **options), plain(*theirs, **options)
    padded = [miss.did for miss in kept.of(events.GuardMissed)]
    assert padded
    assert all(did.startswith("padded") for did in padded)
    assert pytree.tree_structure(result) == pytree.tree_structure(expected)
    for one, other in zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)
    scored(result).backward()
    scored(expected).backward()
    gradients = zip([*module.parameters(), *ours], [*plain.parameters(), *theirs], strict=True)
    for one, other in gradients:
        assert (one.grad is None) == (other.grad is None)
        torch.testing.assert_close(one.grad, other.grad)
    return kept


def pooled(m: Call, x: Tensor, mask: Tensor) -> Tensor:
    h = torch.tanh(x @ m.weight) * mask[..., None]
    return h.sum(1) / mask.sum(1, keepdim=True)


def classified(m: Call, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores = x @ m.weight
    return scores, F.cross_entropy(scores.view(-1, 4), labels.view(-1))


def attended(m: Call, x: Tensor) -> Tensor:
    q, k, v = ((x @ m.weight).unflatten(-1, (2, 2)).transpose(1, 2) for _ in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2)


def rms(m: Call, x: Tensor) -> Tensor:
    h = x @ m.weight
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)


def images(m: Call, x: Tensor) -> Tensor:
    convolution, norm, head = m.parts
    h = F.max_pool2d(F.relu(norm(convolution(x))), 2)
    return head(F.adaptive_avg_pool2d(h, 1).flatten(1))


def class_token(m: Call, x: Tensor) -> Tensor:
    return torch.cat([m.weight[:1].expand(x.shape[0], 1, -1), x], 1) + m.table[: x.shape[1] + 1]


def in_parts(m: Call, x: Tensor) -> tuple[Tensor, ...]:
    return (x @ m.weight).t().chunk(2)


def checkpointed(m: Call, x: Tensor) -> Any:
    return checkpoint(lambda y: torch.sigmoid(y @ m.weight), x, use_reentrant=False)


def evaluated_norm() -> nn.Module:
    return nn.BatchNorm2d(4).eval()


@pytest.mark.parametrize(
    ("function", "parts", "exact", "ragged"),
    [
        (lambda m, x: F.gelu(m.parts[0](x)), [nn.LayerNorm(4)], (8, 6, 4), (5, 6, 4)),
        (lambda m, x: (x @ m.weight).view(-1, 2), [], (8, 6, 4), (5, 6, 4)),
        (lambda m, x: (x @ m.weight).t(), [], (8, 4), (5, 4)),
        (images, [nn.Conv2d(3, 4, 3), evaluated_norm(), nn.Linear(4, 2)], (8, 3, 8, 8),
         (5, 3, 8, 8)),
        (attended, [], (8, 6, 4), (5, 6, 4)),
        (rms, [], (8, 4), (5, 4)),
        (class_token, [], (8, 6, 4), (5, 6, 4)),
        (in_parts, [], (8, 4), (5, 4)),
        (checkpointed, [], (8, 4), (5, 4)),
        (lambda m, x: {"a": x @ m.weight, "b": m.weight * 2}, [], (4, 4), (4, 4)),
        (lambda m, x: (x.softmax(-1) @ m.weight).log_softmax(-1), [], (8, 4), (2, 4)),
    ],
)  # fmt: skip
def test_a_padded_batch_is_the_plain_one(
    tmp_path: Path, function: Any, parts: list[nn.Module], exact: Any, ragged: Any
) -> None:
    torch.manual_seed(0)
    body = BATCH % ""
    if exact == ragged:  # an output of parameters alone has the shape of one with rows
        body, ragged = body.replace("[8]", "[4]"), (3, *ragged[1:])
    same_as_plain(body, Call(function, *parts), tmp_path, draw(exact), draw(ragged))


@pytest.mark.parametrize(
    ("function", "exact", "ragged"),
    [
        (lambda m, x: x @ m.weight, (3, 8, 4), (3, 5, 4)),
        (lambda m, x: (x @ m.weight).transpose(1, 2), (3, 8, 4), (3, 5, 4)),
        (lambda m, x: (x @ m.weight).view(-1, 4), (3, 8, 4), (3, 5, 4)),
        (lambda m, x: (x + m.table[: x.shape[1]]).mean(0), (3, 8, 4), (3, 5, 4)),
    ],
)
def test_a_padded_length_is_the_plain_one(
    tmp_path: Path, function: Any, exact: Any, ragged: Any
) -> None:
    torch.manual_seed(0)
    same_as_plain(LENGTH % "", Call(function), tmp_path, draw(exact), draw(ragged))


def test_embeddings_of_padded_words_are_the_plain_ones(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Call(lambda m, ids: F.embedding(ids, m.table) @ m.weight)
    words = [torch.randint(0, 16, (8, 6))]
    same_as_plain(BATCH % "", module, tmp_path, words, [torch.randint(0, 16, (5, 6))])


def test_a_mask_and_an_ignored_class_take_rows_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mask = (torch.rand(3, 5) > 0.3).float()
    mask[:, 0] = 1
    body = (LENGTH % ', mask = "mask"').replace("input[0]", 'input["x"]')

    class Masked(Call):
        def forward(self, x: Tensor, mask: Tensor) -> Any:  # pyright: ignore
            return pooled(self, x, mask)

    same_as_plain(
        body, Masked(pooled), tmp_path, [torch.randn(3, 8, 4), torch.ones(3, 8)],
        [torch.randn(3, 5, 4), mask],
    )  # fmt: skip
    same_as_plain(
        BATCH % ", ignore = -100", Call(classified), tmp_path,
        [torch.randn(8, 6, 4), torch.randint(0, 4, (8, 6))],
        [torch.randn(5, 6, 4), torch.randint(0, 4, (5, 6))],
    )  # fmt: skip


@pytest.mark.parametrize("ragged", [(5, 7, 4), (8, 7, 4), (5, 8, 4), (5, 5, 4)])
def test_two_dims_are_padded_at_once(tmp_path: Path, ragged: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    body = f"{BATCH % ''}\n{LENGTH % ''}"
    module = Call(lambda m, x: ((x @ m.weight).view(-1, 4), x.transpose(1, 2) * 2, m.weight * 2))
    same_as_plain(body, module, tmp_path, draw((8, 8, 4)), draw(ragged))


def test_outputs_are_cut_whatever_the_other_sizes_are(tmp_path: Path) -> None:
    module = Call(lambda m, x: x @ m.weight)
    call, kept = guarded(BATCH % "", module, tmp_path)
    for shape in ((8, 10, 4), (8, 12, 4), (5, 12, 4), (5, 9, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), module.function(module, x))
    assert len(kept.of(events.GuardMissed)) == 2


def test_what_a_call_stores_or_wraps_is_cut(tmp_path: Path) -> None:
    @dataclass
    class Output:
        y: Tensor

    def keeping(m: Call, x: Tensor) -> Output:
        m.last = x @ m.weight
        return Output(m.last * 2)

    module = Call(keeping)
    call, _ = guarded(BATCH % "", module, tmp_path)
    call(torch.randn(8, 4))
    x = torch.randn(5, 4)
    torch.testing.assert_close(call(x).y, x @ module.weight * 2)
    torch.testing.assert_close(module.last, x @ module.weight)


def test_gradients_follow_the_graph_and_not_the_code_around_it(tmp_path: Path) -> None:
    def learning(m: Call, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x @ m.weight

    call, _ = guarded("capture { eval = compiled }\n" + BATCH % "", Call(learning), tmp_path)
    with torch.no_grad():
        call(torch.randn(8, 4))
        result = call(torch.randn(5, 4))
    assert result.shape == (5, 4)
    assert result.requires_grad


def test_one_row_runs_eagerly(tmp_path: Path) -> None:
    module = Call(lambda m, x: (x @ m.weight).squeeze())
    call, kept = guarded(BATCH % "", module, tmp_path)
    call(torch.randn(8, 4))
    assert call(torch.randn(1, 4)).shape == (4,)
    assert [miss.did for miss in kept.of(events.GuardMissed)] == ["ran eagerly"]


def option(m: Call, x: Tensor, centre: bool = False) -> Tensor:
    return (x - x.mean(0) if centre else x) @ m.weight


def counted(m: Call, x: Tensor) -> Tensor:
    m.seen = m.seen + x.shape[0]
    return x @ m.weight


def kept_input(m: Call, x: Tensor) -> Tensor:
    m.last = x
    return x @ m.weight


def broken(m: Call, x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x @ m.weight


def normed(m: Call, x: Tensor) -> Tensor:
    return m.parts[0](x @ m.weight)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (counted, "the call returns or stores the number of rows"),
        (kept_input, "the call returns or stores an argument as it is"),
        (lambda m, x: (x @ m.weight, x), "the call returns or stores an argument as it is"),
        (broken, "there is no whole graph"),
    ],
)
def test_what_leaves_the_call_uncut_is_refused(tmp_path: Path, function: Any, why: str) -> None:
    call, kept = guarded(BATCH % "", module := Call(function), tmp_path)
    with pytest.raises(Left):
        call(torch.randn(8, 4))
    assert why in refusal(kept)
    assert (module.seen, module.last) == (0, None)


def test_a_graph_that_the_first_call_did_not_have_is_proved_as_well(tmp_path: Path) -> None:
    call, kept = guarded(BATCH % "", Call(option), tmp_path)
    call(torch.randn(8, 4))
    call(torch.randn(5, 4))
    with pytest.raises(Left):
        call(torch.randn(5, 4), centre=True)
    assert "`aten.mean` reduces over the rows" in refusal(kept)


def test_a_part_that_trains_again_is_seen(tmp_path: Path) -> None:
    module = Call(normed, nn.BatchNorm1d(4).eval())
    call, kept = guarded(BATCH % "", module, tmp_path)
    call(torch.randn(8, 4))
    call(torch.randn(5, 4))
    module.parts[0].train()
    with pytest.raises(Left):
        call(torch.randn(5, 4))
    assert "`aten.native_batch_norm` in `parts.0` normalises across the rows" in refusal(kept)


def test_a_mask_that_is_no_argument_is_an_error(tmp_path: Path) -> None:
    class Plain(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input)

    call, kept = guarded(BATCH % ', mask = "msk"', Plain(4, 3), tmp_path)
    with pytest.raises(Left):
        call(torch.randn(8, 4))
    assert kept.codes() == ["SG0724"]


def test_a_size_that_is_an_arguments_by_chance_is_not_padded(tmp_path: Path) -> None:
    """The second argument has 5 columns, as the ragged batch has rows."""
    module = Call(lambda m, x, y: (x @ m.weight) @ y)
    call, _ = guarded(BATCH % "", module, tmp_path)
    y = torch.randn(4, 5)
    call(torch.randn(8, 4), y)
    x = torch.randn(5, 4)
    torch.testing.assert_close(call(x, y), x @ module.weight @ y)


def refusal(kept: Kept) -> str:
    assert kept.codes() == ["SG0723"]
    return next(e.diagnostic["message"] for e in kept.events if hasattr(e, "diagnostic"))


# --- what a call is padded with, and what it is not ----------------------------------------------


def test_a_mask_that_is_not_finite_is_told_from_one_that_is(tmp_path: Path) -> None:
    """An argument that is not enlarged: the proof for finite numbers does not hold for others."""

    def attend(m: Call, x: Tensor, mask: Tensor, low: Tensor) -> Tensor:
        return torch.where(mask[:, None, None] > 0, x @ m.weight, low).softmax(-1)

    body = BATCH % ', mask = "mask"'
    module = Named(attend)
    call, kept = guarded(body, module, tmp_path)
    x, mask = torch.randn(6, 4, 4), torch.ones(6)
    for low in (torch.zeros(4, 4), torch.ones(4, 4)):
        assert torch.equal(call(x, mask, low), module(x, mask, low))
    with pytest.raises(Left):
        call(x, mask, torch.full((4, 4), -torch.inf))
    assert "not finite" in kept.of(events.DiagnosticRaised)[0].diagnostic["message"]


class Named(Call):
    def forward(self, x: Tensor, mask: Tensor, low: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.function(self, x, mask, low)


def test_a_buffer_that_is_not_finite_is_seen(tmp_path: Path) -> None:
    def attend(m: Call, x: Tensor) -> Tensor:
        return (x @ m.weight + m.get_buffer("causal") * x[:, :1, :1]).softmax(-1)

    module = Call(attend)
    module.register_buffer("causal", torch.full((4, 4), -torch.inf).triu(1))
    call, kept = guarded(BATCH % "", module, tmp_path)
    with pytest.raises(Left):
        call(torch.randn(6, 4, 4))
    assert "not finite" in kept.of(events.DiagnosticRaised)[0].diagnostic["message"]


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 6).t(),
        torch.randn(6, 9)[:, :4],
        torch.randn(6, 3, 5, 4).to(memory_format=torch.channels_last),
        torch.randn(2, 6, 4).transpose(0, 1),
    ],
    ids=["transposed", "a slice", "channels last", "rows inside"],
)
def test_an_argument_keeps_its_layout(tmp_path: Path, x: Tensor) -> None:
    def called(m: Call, x: Tensor) -> Tensor:
        layout = x.is_contiguous(), [x.stride(d) > 1 for d in range(x.dim())]
        return (x if layout[0] else x * 2) @ m.weight * (1.0 + sum(layout[1]))

    module = Call(called)
    call, _ = guarded(BATCH % "", module, tmp_path)
    assert torch.allclose(call(x), module(x))
