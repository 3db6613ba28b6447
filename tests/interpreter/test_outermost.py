from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from sgplan.interpreter import backward, events
from sgplan.interpreter.outermost import WATCHED_STEPS, Outermost

from .world import Kept, rank_under

pytestmark = pytest.mark.usefixtures("patched")

CALL = nn.Module.__call__


class Script:
    """A script without DDP, watched."""

    def __init__(self, folder: Path) -> None:
        self.rank, self.kept = rank_under(folder)
        self.compiled: list[nn.Module] = []
        finder = Outermost(
            self.rank, lambda root, module: None, lambda m: any(m is c for c in self.compiled)
        )
        finder.install()
        backward.install(self.rank, None)
        self.rank.steps.install()

    def train(self, model: nn.Module, steps: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()

    @property
    def found(self) -> list[str]:
        return [root.cls.partition(":")[2] for root in self.rank.roots]


@pytest.fixture
def script(tmp_path: Path, patched: None) -> Script:
    return Script(tmp_path)


def test_the_outermost_module_called_to_train_is_a_root(script: Script) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    script.train(model, 1)
    assert script.found == ["Sequential"]
    (root,) = script.rank.roots
    assert (root.kind, root.path, root.engine) == ("module", "none", "eager")


def test_an_evaluation_and_a_loss_module_are_no_roots(script: Script) -> None:
    with torch.no_grad():
        nn.Linear(3, 2)(torch.ones(1, 3))
    nn.MSELoss()(torch.ones(2, requires_grad=True), torch.ones(2))
    assert script.found == []


def test_a_module_the_script_compiles_is_another_ones_root(script: Script) -> None:
    model = nn.Linear(3, 2)
    script.compiled.append(model)
    model(torch.ones(1, 3))
    assert script.found == []


def test_two_outermost_modules_are_two_roots(script: Script) -> None:
    encoder, decoder = nn.Linear(3, 4), nn.Linear(4, 3)
    decoder(encoder(torch.ones(1, 3)))
    assert [root.name for root in script.rank.roots] == ["model", "model1"]


def test_module_call_is_given_back_and_calls_are_still_counted(script: Script) -> None:
    assert nn.Module.__call__ is not CALL
    model = nn.Linear(3, 2)
    script.train(model, WATCHED_STEPS + 3)
    assert nn.Module.__call__ is CALL
    steps = script.kept.of(events.StepFinished)
    assert [step.samples for step in steps] == [4] * (WATCHED_STEPS + 3)
    assert script.rank.roots[0].called == WATCHED_STEPS + 3


def test_an_error_in_forward_comes_out_and_watching_goes_on(script: Script) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        nn.Linear(3, 2)(torch.ones(1, 5))
    model = nn.Sequential(nn.Linear(3, 2))
    model(torch.ones(1, 3))
    assert "Sequential" in script.found


def test_results_hooks_and_state_dict_are_the_scripts_own(script: Script) -> None:
    model = nn.Linear(3, 2)
    seen: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(1))
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    script.train(model, WATCHED_STEPS + 1)
    assert len(seen) == WATCHED_STEPS + 1
    assert list(model.state_dict()) == list(plain)


def test_a_model_the_script_drops_is_freed(script: Script) -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert script.rank.facts().roots[0].parameters[0].name == "weight"
    nn.Linear(3, 2)(torch.ones(1, 3)).sum().backward()
    assert len(script.rank.roots) == 2


def test_kept_is_what_was_emitted(script: Script) -> None:
    assert isinstance(script.kept, Kept)
    nn.Linear(3, 2)(torch.ones(1, 3))
    assert [event.root for event in script.kept.of(events.RootFound)] == ["model"]
