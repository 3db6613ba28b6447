"""One graph through Inductor under a plan, with a cache folder of its own, cold and warm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch import nn

from sgplan.interpreter import gate, ops
from sgplan.planner import torch_api
from sgplan.planner.capture.backend import (
    Compiled,
    GraphCompiler,
    GraphRecorder,
    InductorRecorder,
)
from sgplan.planner.capture.once import SideFile
from sgplan.planner.capture.record import record_graph
from sgplan.planner.facts import GraphFact

assert ops.__doc__  # imported for the op it registers

# torch says this of itself when Inductor is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty compile cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 33)
        self.b = nn.Linear(33, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


X = torch.linspace(-1, 1, 12).reshape(4, 3)


def record(graph: fx.GraphModule, direction: Any, inputs: Sequence[Any]) -> GraphFact:
    return record_graph(graph, direction, "Net.forward")


def directions(outcome: Compiled) -> list[str]:
    return [graph.direction for graph in outcome.graphs]


class Trained:
    """A module's output and gradients through a compiler, and what the compile said."""

    def __init__(self, compiler: Any) -> None:
        torch._dynamo.reset()
        self.outcomes: list[Compiled] = []
        net = Net()

        def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
            self.outcomes.append(compiler.compile(gm, inputs, {}, None))
            return self.outcomes[-1].call

        self.output = torch.compile(net, backend=backend)(X)
        self.output.pow(2).mean().backward()
        self.gradients = [p.grad for p in net.parameters()]

    def same(self, other: Trained) -> bool:
        pairs = zip(self.gradients, other.gradients, strict=True)
        return torch.equal(self.output, other.output) and all(
            a is not None and b is not None and torch.equal(a, b) for a, b in pairs
        )


def test_who_comes_second_probes_the_cpu_while_the_first_traces(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []

    def traced(graph: fx.GraphModule, direction: Any, inputs: Sequence[Any]) -> GraphFact:
        did.append("traced")
        raise RuntimeError("far enough")

    def compile_so_far() -> list[str]:
        did.clear()
        with pytest.raises(Exception, match="far enough"):
            Trained(GraphCompiler(traced, "in_graph"))
        return list(did)

    monkeypatch.setattr(torch_api, "probe_cpu", lambda: did.append("probed"))
    assert compile_so_far() == ["traced"]
    (lock,) = (cache / "sgplan").glob("*.lock")
    with SideFile(cache / "sgplan", lock.stem).first() as held:
        assert held
        assert compile_so_far() == ["probed", "traced"]
    assert compile_so_far() == ["traced"]


class PlainInductor:
    """Inductor as it is."""

    def compile(self, gm: fx.GraphModule, inputs: Any, patches: Any, name: Any) -> Compiled:
        return Compiled(torch_api.compile_fx(gm, inputs), [], 0.0, "off")


@pytest.mark.slow
def test_a_planned_compile_equals_plain_inductor_cold_and_warm(cache: Path) -> None:
    plain = Trained(PlainInductor())
    cold = Trained(GraphCompiler(record, "in_graph"))
    warm = Trained(GraphCompiler(record, "in_graph"))
    assert cold.same(plain)
    assert warm.same(plain)
    assert [outcome.cache for outcome in (*cold.outcomes, *warm.outcomes)] == ["miss", "hit"]
    assert directions(cold.outcomes[0]) == ["forward", "backward"]
    assert all(graph.kernels for graph in cold.outcomes[0].graphs)
    assert warm.outcomes[0].graphs == cold.outcomes[0].graphs


@pytest.mark.slow
def test_another_kind_of_reductions_never_reuses_the_code(cache: Path) -> None:
    first = Trained(GraphCompiler(record, "in_graph"))
    second = Trained(GraphCompiler(record, "none"))
    assert [outcome.cache for outcome in second.outcomes] == ["miss"]
    assert second.same(first)


@pytest.mark.slow
def test_code_whose_record_is_gone_is_recorded_again(cache: Path) -> None:
    (first,) = Trained(GraphCompiler(record, "none")).outcomes
    for path in (cache / "sgplan").glob("*.msgpack"):
        path.unlink()
    (again,) = Trained(GraphCompiler(record, "none")).outcomes
    assert again.graphs == first.graphs
    assert all(graph.kernels for graph in again.graphs)
    (third,) = Trained(GraphCompiler(record, "none")).outcomes
    assert third.graphs == first.graphs
    assert third.cache == "hit"


@pytest.mark.slow
def test_a_record_of_other_names_is_never_reused(cache: Path) -> None:
    def regions(name: str) -> list[str]:
        def named(graph: fx.GraphModule, direction: Any, inputs: Sequence[Any]) -> GraphFact:
            return record_graph(graph, direction, name)

        (outcome,) = Trained(GraphCompiler(named, "none", context=name)).outcomes
        return [graph.region for graph in outcome.graphs]

    assert regions("one") == ["one", "one"]
    assert regions("other") == ["other", "other"]


@pytest.mark.slow
def test_gradients_of_a_second_backward_are_independent(cache: Path) -> None:
    found = Trained(GraphCompiler(record, "in_graph"))
    pointers = {g.untyped_storage().data_ptr() for g in found.gradients if g is not None}
    assert len(pointers) == len(found.gradients)
    assert gate._open == {}


def test_plan_mode_records_what_eager_runs_and_lets_it_run() -> None:
    found = Trained(GraphRecorder(record))
    plain = Net()
    plain(X).pow(2).mean().backward()
    assert torch.equal(found.output, plain(X))
    (outcome,) = found.outcomes
    assert directions(outcome) == ["forward", "backward"]
    assert outcome.cache == "off"


def test_plan_mode_records_what_inductor_would_compile_and_compiles_nothing(cache: Path) -> None:
    found = Trained(InductorRecorder(record))
    (outcome,) = found.outcomes
    assert directions(outcome) == ["forward", "backward"]
    assert not list(cache.rglob("*.so"))


def test_an_error_of_the_recording_comes_out() -> None:
    def fail(graph: fx.GraphModule, direction: str, inputs: Sequence[Any]) -> Any:
        raise KeyError("no such fact")

    with pytest.raises(Exception, match="no such fact"):
        Trained(GraphRecorder(fail))
