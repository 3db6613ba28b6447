"""`fuse … { with = triton(…) }` on real graphs: what is replaced, by what, and what is left.

On the CPU an op computes its reference, so numbers are those of plain torch up to rounding; whether
a kernel is right is asked in `test_kernel_check.py`, and here of nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, library, nn
from torch.utils.checkpoint import checkpoint

from sgplan.interpreter import ops
from sgplan.planner.capture.backend import Compiled, GraphCompiler, InductorRecorder, Ruling
from sgplan.planner.capture.record import record_graph
from sgplan.planner.capture.sites import DeviceProfile
from sgplan.planner.facts import GraphFact, Placed, SiteFact
from sgplan.planner.kernels.check import Case
from sgplan.planner.kernels.source import located
from sgplan.planner.kernels.substitute import Substitution
from sgplan.planner.rules import rejected, rules_of

from .build import plan

assert ops.__doc__  # imported for the op it registers

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
]
FOLDER = Path(__file__).parent.parent / "cases" / "kernels"
X = torch.linspace(-1, 1, 2 * 8 * 32).reshape(2, 8, 32)

BIAS_GELU = 'fuse "bg" { match = bias -> aten.gelu  with = triton("sgplan:bias_gelu") }'
ADD_NORM = 'fuse "an" { match = aten.add -> norm  with = triton("sgplan:add_layer_norm") }'
ADD_RMS = 'fuse "rn" { match = aten.add -> aten.rms_norm  with = triton("sgplan:add_rms_norm") }'
LOSS = 'fuse "ce" { match = aten.cross_entropy_loss  with = triton("sgplan:cross_entropy") }'
ADD_RELU = (
    'fuse "ar" { match = aten.add -> aten.relu  '
    'with = triton("faulty.py:right", reference = "faulty.py:plain") }'
)


class Net(nn.Module):
    """Everything that a kernel of the library can stand for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm, self.rms = nn.LayerNorm(32, eps=1e-4), nn.RMSNorm(32, eps=1e-3)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x + x.sin())
        x = x + self.down(F.gelu(self.up(y), approximate="tanh"))
        total = x + y
        x = total + self.rms(total)
        return F.cross_entropy(self.head(x).flatten(0, 1), torch.arange(16) % 10)


class Chain(nn.Module):
    """`function(x, w)` with a parameter, so that there is a backward."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 32))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


class Seen:
    """A module's output and gradients with kernels in it, and what the compile said."""

    def __init__(
        self,
        module: nn.Module,
        body: str,
        *,
        compiles: bool = False,
        dynamic: bool | None = None,
        objection: Callable[[Case], str] = lambda case: "",
    ) -> None:
        torch._dynamo.reset()
        self.plan = plan(body)
        self.outcomes: list[Compiled] = []
        self.cases: list[Case] = []
        self.placed: list[Placed] = []
        modules = tuple(name for name, _ in module.named_modules())
        rules = rules_of(self.plan, None)

        def noted(case: Case) -> str:
            self.cases.append(case)
            return objection(case)

        def profile() -> DeviceProfile:
            return DeviceProfile(1e10, 1e-6)

        kernels = {rule.address: located(rule.kernel, FOLDER) for rule in rules if rule.kernel}
        passes = (Substitution(rules, modules, kernels, noted, profile, self.placed.extend),)

        def record(graph: Any, direction: Any, inputs: Any) -> GraphFact:
            return record_graph(graph, direction, "f", modules=modules)

        def backend(gm: Any, inputs: list[Any]) -> Any:
            kind: Any = GraphCompiler if compiles else InductorRecorder
            made = kind(record, "none", Ruling(rules, modules, profile), passes)
            self.outcomes.append(made.compile(gm, inputs, {}, None))
            return self.outcomes[-1].call

        self.output = torch.compile(module, backend=backend, dynamic=dynamic)(X)
        if compiles:
            self.output.sum().backward()
        self.gradients = [p.grad for p in module.parameters()]

    @property
    def graphs(self) -> list[GraphFact]:
        return self.outcomes[0].graphs

    def sites(self) -> list[SiteFact]:
        return [site for graph in self.graphs for site in graph.sites]

    def said(self) -> list[tuple[str, str]]:
        return [(site.outcome, site.why) for site in self.sites()]


def close(one: Any, other: Any) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_every_kernel_of_the_library_stands_in_one_model(dynamic: bool | None) -> None:
    plain = Net()
    expected = plain(X)
    expected.backward()
    body = "\n".join((BIAS_GELU, ADD_NORM, ADD_RMS, LOSS))
    seen = Seen(Net(), body, compiles=True, dynamic=dynamic)
    assert {(s.rule, s.outcome) for s in seen.sites()} == {
        (rule, "replaced") for rule in ("fuse.bg", "fuse.an", "fuse.rn", "fuse.ce")
    }
    assert close(seen.output, expected)
    for got, parameter in zip(seen.gradients, plain.parameters(), strict=True):
        assert close(got, parameter.grad)


def test_the_kernel_that_holds_a_site_is_named_by_its_rule() -> None:
    (site,) = (seen := Seen(Net(), BIAS_GELU)).sites()
    assert site.ops == (("aten.addmm.default", "up"), ("aten.gelu.default", ""))
    (place,) = site.kernels
    kernel = seen.graphs[0].kernels[place]
    assert kernel.rules == ("fuse.bg",)
    assert kernel.kind == "library"
    assert kernel.ops[0][0].startswith("sgplan_kernels::bias_gelu_")


def test_a_kernel_gets_tensors_in_the_order_of_the_ops_and_their_constants() -> None:
    seen = Seen(Net(), "\n".join((ADD_NORM, ADD_RMS)))
    layer, rms = seen.cases
    assert [t.shape if t else None for t in layer.tensors] == [(2, 8, 32), (2, 8, 32), (32,), (32,)]
    assert layer.constants["eps"] == 1e-4
    assert layer.returns == (0, 1)
    assert [t.shape if t else None for t in rms.tensors] == [(2, 8, 32), (2, 8, 32), (32,)]
    assert rms.constants["eps"] == 1e-3


@pytest.mark.slow
def test_a_warm_compile_reports_the_same() -> None:
    cold = Seen(Net(), ADD_NORM, compiles=True)
    warm = Seen(Net(), ADD_NORM, compiles=True)
    assert [seen.outcomes[0].cache for seen in (cold, warm)] == ["miss", "hit"]
    assert warm.graphs == cold.graphs
    assert torch.equal(warm.output, cold.output)


def test_a_kernel_that_is_objected_to_leaves_the_ops_and_says_why() -> None:
    seen = Seen(Net(), BIAS_GELU, objection=lambda case: "differs by 0.3")
    assert seen.said() == [("rejected", "differs by 0.3")]
    assert not any("sgplan_kernels" in op.op for graph in seen.graphs for op in graph.ops)
    (told,) = rejected(seen.plan, seen.placed)
    assert told.code == "SG0614"
    assert told.notes == ("differs by 0.3",)
    warned = Seen(Net(), BIAS_GELU.replace("with", "on_miss = warn  with"), objection=str)
    assert rejected(warned.plan, warned.placed) == []


def test_a_file_that_cannot_be_loaded_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty.py").write_text("raise SystemExit('no gpu')")
    monkeypatch.setattr(sys.modules[__name__], "FOLDER", tmp_path)
    seen = Seen(Chain(in_place), ADD_RELU)
    ((outcome, why),) = seen.said()
    assert outcome == "rejected"
    assert "cannot be loaded: SystemExit('no gpu')" in why
    assert [d.code for d in rejected(seen.plan, seen.placed)] == ["SG0614"]


def twice_read(x: Tensor, w: Tensor) -> Tensor:
    total = x + w
    return torch.relu(total) * total


def random_between(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(F.dropout(x + w, 0.5))


def in_place_elsewhere(x: Tensor, w: Tensor) -> Tensor:
    total = x + w
    other = total * 2
    torch.relu_(total)
    return total + other


def in_place(x: Tensor, w: Tensor) -> Tensor:
    return F.relu(x + w, inplace=True)


def summed(x: Tensor, w: Tensor) -> Tensor:
    return (x + x * w).sum(-1)


def changed_between(x: Tensor, w: Tensor) -> Tensor:
    other = x * 2
    total = x * w + other
    other.view(-1).mul_(0.5)
    return torch.relu(total) + other


def changed_operand(x: Tensor, w: Tensor) -> Tensor:
    other = x * 2
    total = other + w
    other.mul_(0.5)
    return torch.relu(total) + other


def changed_later(x: Tensor, w: Tensor) -> Tensor:
    other = x * 2
    result = torch.relu(other + w)
    other.mul_(0.5)
    return result * 3 + other


def step_changed_and_read(x: Tensor, w: Tensor) -> Tensor:
    total = x + w
    F.relu(total, inplace=True)
    return total * 2


def turned_result(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x.transpose(0, 1) + w)


def in_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    inner: Any = checkpoint(lambda y: torch.relu(y + w), x, use_reentrant=False)
    return torch.relu(inner.sin() + w)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "outcomes"),
    [
        (changed_between, ["refused"]),
        (changed_operand, ["refused"]),
        (changed_later, ["refused"]),
        (step_changed_and_read, ["refused"]),
        (turned_result, ["refused"]),
        (in_checkpoint, ["refused", "replaced"]),
    ],
)
def test_numbers_stay_whatever_changes_in_place(function: Any, outcomes: list[str]) -> None:
    seen = Seen(Chain(function), ADD_RELU, compiles=True)
    assert [outcome for outcome, _ in seen.said()] == outcomes, seen.said()
    plain = Chain(function)
    expected = plain(X)
    expected.sum().backward()
    assert close(seen.output, expected)
    assert close(seen.gradients[0], plain.weight.grad)


ADD3 = """
import torch
from faulty import right

def add3(x, y, z):
    return right(x, y) + z

def plain(x, y, z):
    return x + y + z
"""


def test_a_site_that_shares_an_op_with_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "add3.py").write_text(ADD3)
    (tmp_path / "faulty.py").write_text((FOLDER / "faulty.py").read_text())
    monkeypatch.setattr(sys.modules[__name__], "FOLDER", tmp_path)
    body = (
        'fuse "a" { match = aten.add -> aten.add  '
        'with = triton("add3.py:add3", reference = "add3.py:plain") }'
    )
    seen = Seen(Chain(lambda x, w: (x * w + x.sin() + x.cos() + x.tan()).exp()), body)
    assert seen.said() == [("replaced", ""), ("refused", "another site has a part of it")]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (twice_read, "is read elsewhere too, and the kernel returns the last step's alone"),
        (in_place_elsewhere, "changes a tensor that others see"),
    ],
)
def test_where_no_kernel_can_stand_the_ops_stay_with_the_reason(function: Any, why: str) -> None:
    ((outcome, said),) = Seen(Chain(function), ADD_RELU).said()
    assert outcome == "refused"
    assert why in said


def test_a_random_op_is_never_replaced() -> None:
    body = ADD_RELU.replace("aten.add -> aten.relu", "random")
    found = Seen(Chain(random_between), body).said()
    assert found
    assert all(outcome == "refused" and "is random" in why for outcome, why in found)


def test_a_reference_of_another_shape_is_rejected_before_anything_is_run() -> None:
    seen = Seen(Chain(summed), ADD_RELU.replace("aten.relu", "aten.sum"))
    assert seen.said() == [
        (
            "rejected",
            "`faulty.py:plain` returns float32 2x8x32, and `aten.sum.dim_IntList` makes "
            "float32 2x8",
        )
    ]
    assert seen.cases == []


@pytest.mark.slow
def test_an_op_that_changes_what_only_it_reads_is_replaced() -> None:
    seen = Seen(Chain(in_place), ADD_RELU, compiles=True)
    assert seen.said() == [("replaced", "")]
    plain = Chain(in_place)
    expected = plain(X)
    expected.sum().backward()
    assert close(seen.output, expected)
    assert close(seen.gradients[0], plain.weight.grad)


def test_a_kernel_of_one_plan_leaves_a_plain_compile_alone() -> None:
    seen = Seen(Net(), BIAS_GELU)
    assert seen.said() == [("replaced", "")]
    graphs: list[Any] = []

    def keep(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(Net(), backend=keep)(X)
    assert not any("sgplan" in str(node.target) for node in graphs[0].graph.nodes)


@pytest.mark.slow
def test_the_ops_keep_what_torch_asks_of_a_custom_op() -> None:
    seen = Seen(Net(), ADD_NORM)
    name = seen.graphs[0].kernels[seen.sites()[0].kernels[0]].ops[0][0]
    op = getattr(torch.ops.sgplan_kernels, name.split("::")[1].removesuffix(".default")).default
    weight = torch.ones(32, requires_grad=True)
    x = torch.randn(2, 8, 32, requires_grad=True)
    library.opcheck(op, (x, torch.randn(2, 8, 32), weight, torch.zeros(32, requires_grad=True)))
