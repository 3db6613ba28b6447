"""What one rank of a verified run records, takes over, and when it ends; no other process."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.optim import Optimizer

from sgplan.interpreter import events, moments, recorded
from sgplan.interpreter.moments import Moment
from sgplan.interpreter.roots import Root
from sgplan.interpreter.verifying import Task, Verifying

from .world import Kept, Left, rank_under, root_of

pytestmark = pytest.mark.usefixtures("patched")

OPTIMIZER: Any = sys.modules["torch.optim.optimizer"]
SAVE = torch.save
HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seeds and hooks that a rank leaves in its process are given back."""
    for name in HOOKS:
        monkeypatch.setattr(OPTIMIZER, name, OrderedDict())
    state, words, numbers = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    yield
    torch.set_rng_state(state)
    random.setstate(words)
    numpy.random.set_state(numbers)


@dataclass
class Run:
    """One rank that is verified, and a model of it."""

    verifying: Verifying
    kept: Kept
    root: Root
    model: Any
    folder: Path

    def call(self, *args: Any, **kwargs: Any) -> Any:
        rank = self.verifying._rank
        rank.called(self.root, args, kwargs)
        output = self.model(*args, **kwargs)
        rank.returned(self.root, output)
        return output

    def backward(self, loss: torch.Tensor) -> None:
        with self.verifying._rank.backward([loss], plain=True):
            loss.backward()

    def moments(self) -> list[Moment]:
        folder = moments.folder_of(self.folder, 0)
        found = (moments.read(folder, number) for number in range(moments.count(folder)))
        return [moment for moment in found if moment is not None]

    def of(self, kind: str) -> Moment:
        """The last moment of a kind."""
        return [moment for moment in self.moments() if moment.kind == kind][-1]


def started(
    folder: Path, module: nn.Module, body: str = "", against: Path | None = None, **task: Any
) -> Run:
    """A verified rank with one root; the scale of `body` acts, if it has one."""
    folder.mkdir(exist_ok=True)
    for name in HOOKS:  # of an earlier run in this process
        getattr(OPTIMIZER, name).clear()
    torch.save = SAVE
    rank, kept = rank_under(folder, body, mode="verify")
    given = {"steps": 9, "seed": 0, "against": None if against is None else str(against), **task}
    rank.verifying = verifying = Verifying(rank, Task(**given))
    verifying.install()
    rank.loss_scales.install()
    rank.inner_steps.install()
    verifying.watch_updates()
    rank.steps.install()
    root = root_of(module)
    rank.add_root(root)
    return Run(verifying, kept, root, module, folder)


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner, self.again = inner, self


def test_tensors_are_found_in_plain_objects_once() -> None:
    one, other = torch.ones(1), torch.ones(2)
    found = recorded.tensors({"a": Holder([one, SimpleNamespace(b=other)]), "c": nn.Linear(1, 1)})
    assert [(name, len(tensor)) for name, tensor in found] == [("a.inner.0", 1), ("a.inner.1.b", 2)]


def test_sparse_gradients_are_compared_and_taken_over(tmp_path: Path) -> None:
    def run(folder: Path, factor: float, against: Path | None = None) -> tuple[Run, nn.Module]:
        torch.manual_seed(0)
        table = nn.Embedding(4, 2, sparse=True)
        found = started(folder, table, against=against)
        optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
        found.backward((factor * found.call(torch.tensor([1, 1, 3]))).sum())
        optimizer.step()
        return found, table

    reference, one = run(tmp_path / "a", 1.0)
    planned, other = run(tmp_path / "b", 3.0, tmp_path / "a")
    gradient = planned.of("backward").values["gradients"]["weight"]
    assert gradient is not None
    assert gradient.tolist() == [[0, 0], [6, 6], [0, 0], [3, 3]]
    # The wrong gradient was seen; the update began from the plain one.
    assert torch.equal(
        reference.of("update").values["parameters"]["weight"],  # pyright: ignore
        planned.of("update").values["parameters"]["weight"],  # pyright: ignore
    )
    assert torch.equal(one.weight, other.weight)  # pyright: ignore


def test_what_has_no_copy_is_said(tmp_path: Path) -> None:
    class Net(nn.Linear):
        def forward(self, input: torch.Tensor) -> Any:
            self.result = super().forward(input)
            return 7

    run = started(tmp_path / "a", Net(2, 1))
    run.call(torch.ones(1, 2))
    assert run.of("call").notes == ["what `model` returns is not compared: no tensor in int"]
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert recorded.kept({"x": nested}) == {}
    (text,) = recorded.not_kept("input", {"x": nested})
    assert "input `x` is not compared" in text


def test_gradients_of_inputs_are_part_of_the_topology(tmp_path: Path) -> None:
    run = started(tmp_path / "a", nn.Linear(2, 1))
    for _ in range(2):
        x = torch.ones(1, 2, requires_grad=True)
        run.backward(run.call(x).sum())
    found = run.of("backward")
    assert found.facts["gradient topology"] == ["input 0.0", "weight", "bias"]
    assert torch.equal(found.values["gradients"]["input 0.0"], run.model.weight)  # pyright: ignore


def test_gradients_of_inputs_are_taken_over(tmp_path: Path) -> None:
    given: list[Any] = []
    for name, factor in (("a", 1.0), ("b", 2.0)):
        torch.manual_seed(0)
        run = started(tmp_path / name, nn.Linear(2, 1), against=tmp_path / "a" if given else None)
        x = torch.ones(1, 2, requires_grad=True)
        run.backward((factor * run.call(x)).sum())
        given.append((run.of("backward").values["gradients"]["input 0.0"], x.grad))
    (_, plain), (seen, planned) = given
    assert torch.equal(seen, 2 * plain)
    assert torch.equal(planned, plain)


def test_each_backward_has_the_topology_of_its_own_loss(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.one(x), self.other(x)

    run = started(tmp_path / "a", Two())
    for loss in run.call(torch.ones(1, 2)):
        run.backward(loss.sum())
    found = [m.facts["gradient topology"] for m in run.moments() if m.kind == "backward"]
    assert found == [["one.weight", "one.bias"], ["other.weight", "other.bias"]]


def test_formats_inside_of_a_call_and_of_frozen_parameters_are_recorded(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(2, 2).half().requires_grad_(False)
            self.head = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.head(x).float()

    run = started(tmp_path / "a", Net())
    run.call(torch.ones(1, 2))
    assert run.of("call").facts["compute"] == ["bfloat16", "float16", "float32"]


# --- updates -------------------------------------------------------------------------------------


def trained(run: Run, optimizer: Optimizer, scaler: Any, factor: float = 1.0) -> None:
    loss = (factor * run.call(torch.ones(4, 2))).square().mean()
    optimizer.zero_grad()
    run.backward(scaler.scale(loss))
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("scale", [1024.0, 1000.0])
def test_a_fused_step_under_a_scaler_is_recorded_without_the_scale(
    tmp_path: Path, scale: float
) -> None:
    def run(folder: Path, fused: bool, against: Path | None = None) -> Moment:
        torch.manual_seed(0)
        found = started(folder, nn.Linear(2, 1), against=against)
        optimizer = torch.optim.AdamW(found.model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        trained(found, optimizer, scaler)
        return found.of("update")

    plain = run(tmp_path / "a", False)
    fused = run(tmp_path / "b", True, tmp_path / "a")
    for quantity in ("gradients at the update", "parameters", "optimizer state"):
        for name, value in plain.values[quantity].items():
            torch.testing.assert_close(fused.values[quantity][name], value, rtol=1e-6, atol=0)


def test_an_update_that_a_scaler_skips_is_none_for_fused_steps_either(tmp_path: Path) -> None:
    found = started(tmp_path / "a", nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(found.model.parameters(), fused=True)
    trained(found, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0), factor=1e30)
    assert [moment.kind for moment in found.moments()] == ["call", "backward"]
    trained(found, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert found.moments()[-1].kind == "update"


def overflown(folder: Path, forgets: bool = False) -> tuple[Run, Run, Optimizer]:
    """A plain run, and one whose gradients the plan's loss scale makes infinite in step 1."""
    body = 'precision "main" { loss_scale = dynamic(init = 1024) }'
    runs: list[Run] = []
    optimizer: Any = None
    for name, plan in (("a", ""), ("b", body)):
        torch.manual_seed(0)
        run = started(folder / name, nn.Linear(2, 1), plan, folder / "a" if plan else None)
        run.verifying._rank._judged = True  # there is no graph that the scale could act in
        if plan and not forgets:
            run.verifying._rank.loss_scales.scaling(run.root)
        optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.1)
        for step in range(2):
            loss = run.call(torch.ones(4, 2)).square().mean()
            optimizer.zero_grad()
            with run.verifying._rank.backward([loss], plain=True):
                loss.backward()
                if plan and step == 0:
                    for parameter in run.model.parameters():
                        parameter.grad.fill_(torch.inf)  # pyright: ignore
            optimizer.step()
        runs.append(run)
    return runs[0], runs[1], optimizer


def test_an_overflow_is_skipped_and_the_next_step_begins_where_the_plain_run_is(
    tmp_path: Path,
) -> None:
    plain, planned, _ = overflown(tmp_path)
    first, second = (m for m in planned.moments() if m.kind == "update")
    assert first.facts["skipped"] == []
    assert "skipped" not in second.facts
    assert [m.facts.get("overflow") for m in planned.moments() if m.kind == "backward"] == [
        True,
        None,
    ]
    last = plain.of("update")
    for quantity in ("parameters", "optimizer state"):
        for name, value in last.values[quantity].items():
            # Not bit for bit: a BLAS may round by where its operands lie in memory. A step that
            # began elsewhere is off by the learning rate, 0.1.
            torch.testing.assert_close(second.values[quantity][name], value, rtol=1e-5, atol=1e-7)
    assert planned.verifying._rank.loss_scales._scales["model"].value == 512


def test_an_overflow_that_is_not_skipped_is_said(tmp_path: Path) -> None:
    _, planned, _ = overflown(tmp_path, forgets=True)
    first = next(m for m in planned.moments() if m.kind == "update")
    assert {"weight", "bias"} <= set(first.facts["skipped"])


# --- the end -------------------------------------------------------------------------------------


def test_a_rank_leaves_when_every_optimizer_of_the_last_step_has_moved(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Linear(2, 4), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.small(self.large(x))

    run = started(tmp_path / "a", Two(), steps=2)
    parts = (run.model.large, run.model.small)
    both = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]

    def train() -> None:
        for _ in range(9):
            run.backward(run.call(torch.ones(1, 2)).sum())
            for optimizer in both:
                optimizer.step()

    with pytest.raises(Left) as left:
        train()
    assert left.value.args == (0,)
    found = [(m.name, m.step) for m in run.moments() if m.kind == "update"]
    assert found == [("SGD", 0), ("SGD1", 0), ("SGD", 1), ("SGD1", 1)]


def test_a_script_that_ends_with_the_last_step_keeps_its_own_end(tmp_path: Path) -> None:
    run = started(tmp_path / "a", nn.Linear(2, 1), steps=1)
    run.backward(run.call(torch.ones(1, 2)).sum())
    run.verifying._rank.end("raised", "ValueError: mine")
    (end,) = run.kept.of(events.ScriptEnded)
    assert (end.how, end.detail, end.steps) == ("raised", "ValueError: mine", 1)
    assert run.kept.closed


def test_the_peers_are_not_waited_for_when_the_store_is_gone(tmp_path: Path) -> None:
    run = started(tmp_path / "a", nn.Linear(2, 1))
    rank = run.verifying._rank
    held = [TCPStore("localhost", 0, is_master=True)]
    rank.world, rank.peers.store = 2, TCPStore("localhost", held[0].port, is_master=False)
    leaves = threading.Timer(0.2, held.clear)
    began = time.monotonic()
    leaves.start()
    run.verifying._meeting.arrive()  # rank 0 leaves meanwhile
    leaves.join()
    run.verifying._meeting.arrive()  # and has left
    assert time.monotonic() - began < 20
    assert run.verifying._meeting.arrived() == 2
