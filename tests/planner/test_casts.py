"""Casts of a precision stage: what is lowered, kept and left alone, read from the ATen graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.fx as fx
import torch.nn.functional as F
from torch import Tensor, library, nn

from sgplan.grammar.literals import Selector
from sgplan.planner.capture.backend import as_eager_runs
from sgplan.planner.capture.casts import CastPrecision
from sgplan.planner.capture.record import record_graph
from sgplan.planner.capture.rewrite import Rewritten
from sgplan.planner.facts import GraphFact, OpFact
from sgplan.planner.precision import Clash, Setting, clashing

from .build import plan

KEEP = tuple(Selector(None, family) for family in ("norm", "softmax", "loss"))
BF16 = Setting("bf16", keep=KEEP)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Under:
    """A module compiled under settings; its graphs run op by op.

    Attributes:
        graphs: as recorded.
        notes: of the casts.
    """

    def __init__(self, module: nn.Module, *settings: Setting) -> None:
        self.graphs: list[GraphFact] = []
        self.notes: list[str] = []
        names = tuple(name for name, _ in module.named_modules())
        casts = CastPrecision(settings, names, self.notes.append)

        def record(graph: fx.GraphModule, direction: Any, inputs: Sequence[Any]) -> GraphFact:
            return record_graph(graph, direction, "region", modules=names)

        def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            changed = casts.apply(Rewritten(gm))
            self.graphs += as_eager_runs(changed.gm, inputs, record)
            return changed.gm.forward

        self.call = torch.compile(module, backend=backend, fullgraph=True)

    def ops(self, name: str) -> list[OpFact]:
        found = [
            op for graph in self.graphs for op in graph.ops if op.op.startswith(f"aten.{name}")
        ]
        assert found, f"no {name} in {[op.op for g in self.graphs for op in g.ops]}"
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tok(ids)
        for block in self.blocks:
            q = x.view(4, 6, 2, 8).transpose(1, 2)
            x = x + F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(4, 6, 16)
            x = F.dropout(block(x), 0.1)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def test_kept_ops_are_fp32_and_the_rest_is_not_with_tied_weights_and_dropout() -> None:
    torch.manual_seed(0)
    model = Gpt()
    under = Under(model, BF16)
    logits, loss = under.call(torch.randint(0, 11, (4, 6)))
    loss.backward()
    assert logits.dtype == loss.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert all(p.grad is not None for p in model.parameters())
    for name in ("native_layer_norm", "_log_softmax", "nll_loss"):
        assert {t for op in under.ops(name) for t in op.reads} <= {"f32", "int64"}
    for name in ("addmm", "mm", "gelu", "_scaled_dot_product"):
        assert {t for op in under.ops(name) for t in op.reads} <= {"bf16", "f32", "int64", "uint64"}
        assert all(op.reads[0] == "bf16" for op in under.ops(name))
    assert not under.notes


class Shared(nn.Module):
    """One table is looked up and, twice, a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(11, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids)
        first = F.linear(x, self.tok.weight)
        return first.sum() + F.linear(x * 2, self.tok.weight).sum()


def test_gradients_of_several_uses_are_summed_in_the_format_of_the_parameter() -> None:
    under = Under(Shared(), BF16)
    under.call(torch.randint(0, 11, (4, 6))).backward()
    assert under.ops("embedding_dense_backward")[0].reads[0] == "f32"
    backward = under.graphs[-1].ops
    sums = [op for op in backward if op.op.startswith("aten.add") and not op.module]
    assert sums
    assert all(op.writes == ("f32",) for op in sums)


def test_batch_norm_statistics_stay_fp32_and_right() -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))

    x = torch.randn(8, 3, 6, 6)
    for settings in ((BF16,), (Setting("bf16"),)):
        torch._dynamo.reset()
        plain, model = made(), made()
        plain(x).sum().backward()
        under = Under(model, *settings)
        out = under.call(x)
        out.sum().backward()
        assert out.dtype == torch.float32
        assert model[1].running_var.dtype == model[1].running_mean.dtype == torch.float32
        torch.testing.assert_close(
            model[1].running_mean, plain[1].running_mean, atol=5e-3, rtol=0.02
        )
        torch.testing.assert_close(model[1].running_var, plain[1].running_var, atol=5e-3, rtol=0.02)
        assert model[1].num_batches_tracked == 1
        assert under.ops("convolution")[0].reads == ("bf16",)


class InPlace(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        with torch.no_grad():
            self.mean.mul_(0.5).add_(hidden.mean(0), alpha=0.5)
        out = torch.zeros_like(hidden)
        out[:, :2] = hidden[:, :2]
        view = out.view(-1)
        view += 1
        return out * self.mean


def test_what_a_call_changes_in_place_is_never_cast() -> None:
    torch.manual_seed(0)
    plain = InPlace()
    model = InPlace()
    model.load_state_dict(plain.state_dict())
    x = torch.randn(8, 4)
    expected = plain(x)
    found = Under(model, Setting("bf16")).call(x)
    assert model.mean.dtype == found.dtype == torch.float32
    torch.testing.assert_close(model.mean, plain.mean, atol=5e-3, rtol=0.02)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0.05)


def test_globs_priority_and_exceptions_decide_where_casts_are() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    under = Under(
        model, Setting("fp32", inside=("0",), priority=1), Setting("bf16", outside=("2",))
    )
    under.call(torch.randn(2, 4)).sum().backward()
    forward = [(op.module, op.reads) for op in under.graphs[0].ops if "addmm" in op.op]
    assert forward == [("0", ("f32",)), ("1", ("bf16",)), ("2", ("f32",))]


def test_two_settings_of_one_priority_may_not_claim_one_op() -> None:
    model, found = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), list[Clash]()
    settings = (
        Setting("bf16", inside=("1",), address="precision.a"),
        Setting("fp16", match=(Selector(None, "matmul"),), address="precision.b"),
    )
    casts = CastPrecision(settings, ("", "0", "1"), clashed=found.append)

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        changed = casts.apply(Rewritten(gm))
        assert changed.gm is gm
        return gm.forward

    torch.compile(model, backend=backend, fullgraph=True)(torch.randn(2, 4))
    assert found == [Clash("aten.linear.default", "1", "precision.a", "precision.b")]
    blocks = 'precision "a" { in = "1"  compute = bf16 }\n' + (
        'precision "b" { match = matmul  compute = fp16 }'
    )
    told = clashing(plan(blocks), found[0])
    assert told.code == "SG0733"
    assert told.primary is not None
    assert told.secondary


class Autocast(nn.Module):
    """B036: odd sizes under the script's own autocast."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            product = torch.bmm(a, b)
        return product, product.float().softmax(-1)


def test_a_script_with_autocast_keeps_its_formats() -> None:
    a, b = torch.randn(2, 549, 33), torch.randn(2, 33, 549)
    plain = Autocast()(a, b)
    under = Under(Autocast(), BF16)
    found = under.call(a, b)
    assert [t.dtype for t in found] == [t.dtype for t in plain] == [torch.bfloat16, torch.float32]
    assert all(t.isfinite().all() for t in found)
    assert all(torch.equal(f, p) for f, p in zip(found, plain, strict=True))
    assert len(under.notes) == 1
    assert "autocast" in under.notes[0]


class Switched(nn.Module):
    """Autocast is switched off in a part that nobody has switched it on for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = x.float() * 2
        return self.linear(y)


def test_autocast_that_is_off_takes_nothing_from_a_clause() -> None:
    under = Under(Switched(), BF16)
    under.call(torch.ones(2, 8)).sum().backward()
    assert {read for op in under.ops("addmm") for read in op.reads} == {"bf16"}
    assert not under.notes


class Mask(nn.Module):
    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        scores = x @ x.transpose(-1, -2)
        return scores.masked_fill(~keep, torch.finfo(scores.dtype).min).double().softmax(-1).float()


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_a_number_too_large_for_the_format_leaves_its_call_as_written(compute: Any) -> None:
    x, keep = torch.randn(3, 3), torch.eye(3, dtype=torch.bool)
    keep[2] = False
    found = Under(Mask(), Setting(compute)).call(x, keep)
    assert found.isfinite().all()


LEAST = torch.finfo(torch.float32).min


def filled(scores: Tensor, keep: Tensor, value: float) -> Tensor:
    return scores.masked_fill(~keep, value)


def filled_in_place(scores: Tensor, keep: Tensor, value: float) -> Tensor:
    scores[:].masked_fill_(~keep, value)
    return scores


def added(scores: Tensor, keep: Tensor, value: float) -> Tensor:
    return scores + (1 - keep.float()) * value


def added_in_place(scores: Tensor, keep: Tensor, value: float) -> Tensor:
    scores += ((1 - keep.float()) * value)[None].squeeze(0)
    return scores


def chosen(scores: Tensor, keep: Tensor, value: float) -> Tensor:
    return torch.where(keep, scores, torch.full((), value))


@pytest.mark.parametrize("mask", [filled, filled_in_place, added, added_in_place, chosen])
@pytest.mark.parametrize(
    ("compute", "value", "keep_fp32"),
    [("bf16", LEAST, ()), ("fp16", -1e9, KEEP), ("fp16", -1000000, ())],
)
def test_a_row_that_is_masked_as_a_whole_stays_finite(
    mask: Callable[[Tensor, Tensor, float], Tensor], compute: Any, value: float, keep_fp32: Any
) -> None:
    def attend(x: Tensor, keep: Tensor) -> Tensor:
        return mask(x @ x.mT, keep, value).softmax(-1) @ x

    class Attend(nn.Module):
        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            return attend(x, keep)

    x, keep = torch.randn(3, 3), torch.eye(3, dtype=torch.bool)
    keep[2] = False
    under = Under(Attend(), Setting(compute, keep=keep_fp32))
    torch.testing.assert_close(under.call(x, keep), attend(x, keep), atol=5e-2, rtol=5e-2)
    assert any("stays as the script wrote it" in note for note in under.notes)
    low = {"bf16": "bf16", "fp16": "f16"}[compute]
    # What reads a softmax is bounded again.
    assert under.ops("mm")[-1].reads[0] == low


def test_an_op_that_does_not_run_in_the_format_stays_as_written() -> None:
    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return torch.cdist(y, y)

    under = Under(Distances(), Setting("bf16"))
    state = torch.get_rng_state()
    under.call(torch.randn(3, 4, generator=torch.Generator())).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert under.ops("addmm")[0].reads[0] == "bf16"
    assert under.ops("_cdist_forward")[0].reads[0] == "f32"
    (note,) = under.notes
    assert "`cdist` stays as the script wrote it" in note
    assert "BFloat16" in note


@library.custom_op("casts_test::only32", mutates_args=())
def only32(x: Tensor) -> Tensor:
    if x.dtype is not torch.float32:
        raise TypeError(f"the kernel got {x.dtype}")
    return x * 2


@only32.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_op_of_another_library_gets_the_formats_of_the_script() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return only32(self.linear(x))

    under = Under(Custom(), Setting("bf16"))
    with torch.no_grad():
        assert under.call(torch.randn(3, 4)).dtype is torch.float32
    assert under.notes == [
        "`casts_test.only32.default` is no op of torch: it gets the formats of the script"
    ]
