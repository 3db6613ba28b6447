"""Custom operators a plan admits: one diagnostic for each usual fault, with its cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch import library, nn

from sgplan.interpreter import events
from sgplan.interpreter.rank import Rank

from .world import Kept, Left, rank_under

pytestmark = pytest.mark.usefixtures("patched")

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Kernel = Callable[[torch.Tensor], torch.Tensor]


def define(name: str, kernel: Kernel, fake: Kernel | None, mutates: Any = ()) -> Any:
    """`sgtest::NAME`, one tensor to one tensor."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return kernel(x)

    op = library.custom_op(f"sgtest::{name}", body, mutates_args=mutates)
    if fake is not None:
        op.register_fake(fake)
    return op


@pytest.fixture(scope="module", autouse=True)
def ops() -> None:
    """Ops with one fault each; `good` has none."""

    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    good = define("good", lambda x: x * 2, torch.empty_like)
    good.register_autograd(lambda context, grad: grad * 2)
    define("no_fake", lambda x: x * 2, None)
    define("other_shape", lambda x: x * 2, lambda x: x.new_empty(x.shape[0]))
    define("other_dtype", lambda x: x * 2, lambda x: torch.empty_like(x, dtype=torch.float64))
    define("other_strides", lambda x: x * 2, lambda x: x.new_empty(x.shape[::-1]).t())
    define("hidden_write", writes, torch.empty_like)


def under(folder: Path, body: str) -> tuple[Rank, Kept]:
    return rank_under(folder, body)


def graph_of(op: str) -> fx.GraphModule:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(torch.ops.sgtest, op)(x + 1)

    found: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        found.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(Net(), backend=backend)(X)
    return found[0]


def diagnostic(kept: Kept) -> Any:
    (raised,) = kept.of(events.DiagnosticRaised)
    return raised.diagnostic


def test_a_good_operator_is_admitted(tmp_path: Path) -> None:
    rank, kept = under(tmp_path, 'operator "o" { op = sgtest::good }')
    rank.operators.declared()
    rank.operators.probe(graph_of("good"), [X])
    assert kept.codes() == []


def test_an_op_that_nobody_registers(tmp_path: Path) -> None:
    rank, kept = under(tmp_path, 'operator "o" { op = sgtest::goot }')
    with pytest.raises(Left):
        rank.operators.declared()
    found = diagnostic(kept)
    assert found["code"] == "SG0609"
    assert any("`good`" in note for note in found["notes"])
    assert f'@{library.__name__}.custom_op("sgtest::goot"' in found["help"]


def test_a_module_that_was_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "myops.py").write_text("")
    rank, kept = under(tmp_path, 'operator "o" { op = elsewhere::scan  from = "myops.py" }')
    with pytest.raises(Left):
        rank.operators.declared()
    found = diagnostic(kept)
    assert found["notes"] == ["`myops.py` was not imported by the script"]
    assert found["help"].startswith("add `import myops` to the script")


def test_a_file_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rank, kept = under(tmp_path, 'operator "o" { op = elsewhere::scan  from = "gone.py" }')
    with pytest.raises(Left):
        rank.operators.declared()
    assert "does not exist" in diagnostic(kept)["notes"][0]


def test_an_op_without_a_fake(tmp_path: Path) -> None:
    rank, kept = under(tmp_path, 'operator "o" { op = sgtest::no_fake }')
    with pytest.raises(Left):
        rank.operators.declared()
    found = diagnostic(kept)
    assert found["code"] == "SG0610"
    assert f'@{library.__name__}.register_fake("sgtest::no_fake")' in found["help"]


def test_a_fake_that_is_only_preferred_is_a_note(tmp_path: Path) -> None:
    rank, kept = under(tmp_path, 'operator "o" { op = sgtest::no_fake  fake = prefer }')
    rank.operators.declared()
    assert diagnostic(kept)["severity"] == "note"


def test_the_graph_breaks_at_an_op_without_a_fake(tmp_path: Path) -> None:
    rank, _ = under(tmp_path, "")
    rank.operators.declared()
    torch._dynamo.reset()
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.ops.sgtest.no_fake(x.sin())).cos()

    assert torch.equal(torch.compile(function, backend=backend)(X), function(X))
    assert len(graphs) == 2
    assert "register_fake" in rank.operators.advice("cannot trace `torch._ops.sgtest::no_fake`")
    assert rank.operators.advice("anything else") == ""


@pytest.mark.parametrize("what", ["shape", "dtype", "strides"])
def test_a_wrong_fake_is_named_with_both_values(tmp_path: Path, what: str) -> None:
    rank, kept = under(tmp_path, f'operator "o" {{ op = sgtest::other_{what} }}')
    with pytest.raises(Left):
        rank.operators.probe(graph_of(f"other_{what}"), [X])
    found = diagnostic(kept)
    assert found["code"] == "SG0611"
    assert f"it promises {what} " in found["message"]


def test_a_schema_that_hides_a_write(tmp_path: Path) -> None:
    rank, kept = under(tmp_path, 'operator "o" { op = sgtest::hidden_write }')
    with pytest.raises(Left):
        rank.operators.probe(graph_of("hidden_write"), [X.clone()])
    found = diagnostic(kept)
    assert found["code"] == "SG0612"
    assert "mutates_args" in found["help"]


def test_a_check_that_is_off_is_not_made(tmp_path: Path) -> None:
    rank, kept = under(tmp_path, 'operator "o" { op = sgtest::hidden_write  check = off }')
    rank.operators.probe(graph_of("hidden_write"), [X.clone()])
    assert kept.codes() == []


def test_checking_leaves_inputs_and_random_state_alone(tmp_path: Path) -> None:
    rank, _ = under(tmp_path, 'operator "o" { op = sgtest::hidden_write  check = off }')
    given = X.clone()
    state = torch.random.get_rng_state()
    rank.operators.probe(graph_of("hidden_write"), [given])
    assert torch.equal(given, X)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_op_is_checked_once(tmp_path: Path) -> None:
    rank, kept = under(tmp_path, 'operator "o" { op = sgtest::other_shape  fake = required }')
    graph = graph_of("other_shape")
    with pytest.raises(Left):
        rank.operators.probe(graph, [X])
    rank.operators.probe(graph, [X])
    assert len(kept.codes()) == 1
