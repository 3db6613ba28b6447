"""`fuse` and `separate` on real graphs: sites, conditions, and the proof in Inductor's schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sgplan.interpreter import ops
from sgplan.planner.capture.backend import Compiled, GraphCompiler, InductorRecorder, Ruling
from sgplan.planner.capture.record import record_graph
from sgplan.planner.capture.sites import DeviceProfile
from sgplan.planner.facts import GraphFact, SiteFact
from sgplan.planner.rules import rules_of

from .build import plan

assert ops.__doc__  # imported for the op it registers

# torch says this of itself when Inductor is first imported.
pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
]

X = torch.linspace(-1, 1, 2 * 8 * 32).reshape(2, 8, 32)
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Chain(nn.Module):
    """`function(x, w)` with a parameter, so that there is a backward."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 32))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)
        self.outer = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.norm(F.gelu(self.inner(x))))
        return torch.relu(self.outer(torch.softmax(hidden, -1)) * 2) + x


class Seen:
    """A module's output and gradients under rules, and what the compile said.

    Args:
        compiles: makes code; else only the schedule is made, as in plan mode.
    """

    def __init__(self, module: nn.Module, rules: str, *, compiles: bool = False) -> None:
        torch._dynamo.reset()
        self.outcomes: list[Compiled] = []
        modules = tuple(name for name, _ in module.named_modules())
        ruling = Ruling(rules_of(plan(rules), None), modules, lambda: DeviceProfile(1e10, 1e-6))

        def record(graph: Any, direction: Any, inputs: Any) -> GraphFact:
            return record_graph(graph, direction, "f", modules=modules)

        def backend(gm: Any, inputs: list[Any]) -> Any:
            kind: Any = GraphCompiler if compiles else InductorRecorder
            self.outcomes.append(kind(record, "none", ruling).compile(gm, inputs, {}, None))
            return self.outcomes[-1].call

        self.output = torch.compile(module, backend=backend)(X)
        if compiles:
            self.output.sum().backward()
        self.gradients = [p.grad for p in module.parameters()]

    def graph(self, direction: str) -> GraphFact:
        (found,) = [g for g in self.outcomes[0].graphs if g.direction == direction]
        return found

    @property
    def forward(self) -> GraphFact:
        return self.graph("forward")

    @property
    def backward(self) -> GraphFact:
        return self.graph("backward")

    @property
    def units(self) -> tuple[int, int]:
        """Kernels of the forward and of the backward."""
        return len(self.forward.kernels), len(self.backward.kernels)

    def sites(self) -> list[SiteFact]:
        return [site for graph in self.outcomes[0].graphs for site in graph.sites]

    def outcomes_of(self, direction: str) -> list[str]:
        return [site.outcome for site in self.graph(direction).sites]


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.relu(x * w) + x).sin()


# --- separate ------------------------------------------------------------------------------------


def test_a_chain_is_one_kernel_without_rules() -> None:
    assert Seen(Chain(chain), "").units == (1, 1)


def test_separate_raises_the_count_where_asked() -> None:
    seen = Seen(Chain(chain), 'separate "r" { match = aten.relu -> aten.add }')
    assert seen.outcomes_of("forward") == ["separate"]
    assert len(seen.forward.kernels) == 2
    first, second = seen.forward.kernels
    assert [op for op, _ in first.ops] == ["aten.mul.Tensor", "aten.relu.default"]
    assert "aten.add.Tensor" in [op for op, _ in second.ops]
    assert first.rules == second.rules == ("separate.r",)


def test_a_separated_copy_in_the_backward_is_kept_apart_too() -> None:
    seen = Seen(Chain(chain), 'separate "r" { match = aten.relu -> aten.add }')
    assert seen.outcomes_of("backward") == ["recomputed"]
    assert seen.units == (2, 2)


def test_separate_in_the_backward_leaves_the_forward_alone() -> None:
    plain = Seen(Chain(chain), "")
    seen = Seen(Chain(chain), 'separate "r" { match = aten.cos -> aten.mul }')
    assert seen.units[0] == plain.units[0]
    assert seen.outcomes_of("backward") == ["separate"]
    assert seen.units[1] > plain.units[1]


def test_separate_matches_edges_not_op_names() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * w).sin() * w + torch.relu(x)

    seen = Seen(Chain(twice), 'separate "r" { match = aten.relu -> aten.add }')
    assert len(seen.forward.sites) == 1
    assert len(seen.forward.kernels) == 2


def test_a_chain_of_three_is_cut_twice() -> None:
    seen = Seen(Chain(chain), 'separate "r" { match = aten.mul -> aten.relu -> aten.add }')
    assert len(seen.forward.kernels) == 3


# --- fuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "sites"),
    [
        ("aten.mul -> aten.relu", 1),
        ("norm -> aten.gelu", 1),
        ("aten.gelu -> softmax", 1),
        ("aten.gelu -> norm -> aten.gelu", 1),
        ("norm", 1),
        ("softmax", 1),
    ],
)
def test_what_the_compiler_fuses_is_proved(pattern: str, sites: int) -> None:
    seen = Seen(Mlp(), f'fuse "f" {{ match = {pattern} }}')
    assert seen.outcomes_of("forward") == ["fused"] * sites
    (site,) = seen.forward.sites
    (kernel,) = site.kernels
    assert set(site.ops) <= set(seen.forward.kernels[kernel].ops)


def test_a_bias_is_split_off_the_library_call_and_fused() -> None:
    seen = Seen(Mlp(), 'fuse "f" { match = bias -> aten.gelu }')
    assert seen.outcomes_of("forward") == ["fused"]
    kinds = [(k.kind, [op for op, _ in k.ops]) for k in seen.forward.kernels]
    assert ("library", ["aten.mm.default"]) in kinds


def test_a_bias_of_a_convolution_is_split_off_too() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.conv(x.unsqueeze(0)))

    seen = Seen(Net(), 'fuse "f" { match = bias -> aten.relu }')
    assert seen.outcomes_of("forward") == ["fused"]


def test_a_library_call_is_named_as_the_reason() -> None:
    seen = Seen(Mlp(), 'fuse "f" { match = matmul -> aten.gelu }')
    missed = [site for site in seen.forward.sites if site.outcome == "missed"]
    assert [site.why for site in missed] == ["`aten.addmm.default` is a call of a library"]


def test_recomputed_copies_are_no_sites_of_their_own() -> None:
    seen = Seen(Mlp(), 'fuse "f" { match = norm -> aten.gelu }')
    assert seen.outcomes_of("backward") == ["recomputed"]
    (forward,), (copy,) = seen.forward.sites, seen.backward.sites
    assert forward.key == copy.key


def test_a_family_names_ops_of_the_forward() -> None:
    seen = Seen(Mlp(), 'fuse "f" { match = norm }')
    assert seen.outcomes_of("forward") == ["fused"]
    assert seen.outcomes_of("backward") == ["recomputed"]


def test_a_pattern_that_does_not_go_on_is_near() -> None:
    seen = Seen(Mlp(), 'fuse "f" { match = norm -> softmax }')
    assert seen.forward.sites == ()
    ((rule, text),) = seen.forward.near
    assert rule == "fuse.f"
    assert "flows into `aten.gelu.default`" in text


# --- conditions ----------------------------------------------------------------------------------


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.ones(2, 32, 8) + torch.relu(x * w).transpose(1, 2)


def test_another_layout_is_refused_and_kept_apart() -> None:
    seen = Seen(Chain(mixed), 'fuse "f" { match = aten.relu -> aten.add }')
    (site,) = seen.forward.sites
    assert site.outcome == "refused"
    assert site.why.startswith("layouts differ: `aten.add.Tensor` reads 2x32x8")
    assert len(site.kernels) == 2


def test_without_the_condition_another_layout_may_fuse() -> None:
    seen = Seen(Chain(mixed), 'fuse "f" { match = aten.relu -> aten.add  where = [] }')
    assert seen.outcomes_of("forward") == ["fused"]


def to_half(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * w).bfloat16().sin()


def test_another_dtype_is_cast_and_named() -> None:
    seen = Seen(Chain(to_half), 'fuse "f" { match = aten.relu -> aten.sin }')
    (site,) = seen.forward.sites
    assert site.outcome == "fused"
    assert site.why == "cast from float32 to bfloat16 inside the kernel"


def test_another_dtype_is_refused_where_the_rule_says_so() -> None:
    rule = 'fuse "f" { match = aten.relu -> aten.sin  where = [same_dtype] }'
    (site,) = Seen(Chain(to_half), rule).forward.sites
    assert (site.outcome, site.why) == ("refused", "dtypes differ: float32 to bfloat16")


def used_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x * w)
    return y.sin() + y.cos()


def test_a_value_that_is_read_elsewhere_is_not_fused_away() -> None:
    rule = 'fuse "f" { match = aten.relu -> aten.sin  where = [single_use] }'
    (site,) = Seen(Chain(used_twice), rule).forward.sites
    assert site.outcome == "refused"
    assert site.why == "its intermediate is also read by `aten.cos.default`"


def test_too_little_gain_is_refused_with_the_figure() -> None:
    rule = 'fuse "f" { match = aten.mul -> aten.relu  where = [min_gain(%s)] }'
    (low,) = Seen(Chain(chain), rule % "1.0").forward.sites
    (high,) = Seen(Chain(chain), rule % "50.0").forward.sites
    assert low.outcome == "fused"
    assert high.outcome == "refused"
    assert high.why.startswith("predicted gain ")


# --- several rules -------------------------------------------------------------------------------


def test_the_higher_priority_has_a_flow_that_two_rules_claim() -> None:
    rules = """
        fuse "f" { match = aten.relu -> aten.add  priority = 1 }
        separate "s" { match = aten.relu -> aten.add  priority = 2 }
    """
    by_rule = {site.rule: site for site in Seen(Chain(chain), rules).forward.sites}
    assert by_rule["separate.s"].outcome == "separate"
    assert by_rule["fuse.f"].outcome == "refused"
    assert by_rule["fuse.f"].why == "`separate.s` has it, and comes first"


# --- code and caches -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules",
    [
        'separate "r" { match = aten.gelu -> norm }',
        'separate "r" { match = aten.gelu_backward -> aten.native_layer_norm_backward }',
        'fuse "r" { match = norm -> aten.gelu }',
    ],
)
def test_grouping_changes_no_bit_and_a_hit_says_the_same(rules: str) -> None:
    plain = Seen(Mlp(), "", compiles=True)
    cold, warm = (Seen(Mlp(), rules, compiles=True) for _ in range(2))
    assert [o.cache for o in (*cold.outcomes, *warm.outcomes)] == ["miss", "hit"]
    assert warm.outcomes[0].graphs == cold.outcomes[0].graphs
    for seen in (cold, warm):
        assert torch.equal(seen.output, plain.output)
        for ours, theirs in zip(seen.gradients, plain.gradients, strict=True):
            assert ours is not None
            assert theirs is not None
            assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_a_split_bias_is_right() -> None:
    plain = Seen(Mlp(), "", compiles=True)
    seen = Seen(Mlp(), 'fuse "r" { match = bias -> aten.gelu }', compiles=True)
    torch.testing.assert_close(seen.output, plain.output)


@pytest.mark.slow
def test_a_changed_rule_never_meets_the_old_code() -> None:
    def units(rules: str) -> tuple[str, int]:
        seen = Seen(Chain(chain), rules, compiles=True)
        return seen.outcomes[0].cache, len(seen.forward.kernels)

    rule = 'separate "r" { match = aten.relu -> aten.add }'
    assert units("") == ("miss", 1)
    assert units(rule) == ("miss", 2)
    assert units("") == ("hit", 1)
    assert units(rule) == ("hit", 2)


@pytest.mark.slow
def test_a_plain_compile_in_the_same_process_is_not_touched() -> None:
    from torch._inductor import config, metrics
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    Seen(Chain(chain), 'separate "r" { match = aten.relu -> aten.add }', compiles=True)
    assert config.inductor_choices_class is None
    assert type(V.choices) is InductorChoices
    torch._dynamo.reset()
    metrics.reset()
    torch.compile(Chain(chain))(X)
    assert metrics.ir_nodes_pre_fusion == 1


@pytest.mark.slow
def test_the_schedule_of_plan_mode_is_that_of_the_compiled_code() -> None:
    rules = 'separate "r" { match = aten.gelu -> norm }'
    assert (
        Seen(Mlp(), rules).outcomes[0].graphs
        == Seen(Mlp(), rules, compiles=True).outcomes[0].graphs
    )
