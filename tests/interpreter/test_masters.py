"""Masters in one process: against an fp32 reference, with writes, hooks and faults of a script."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer

from sgplan.interpreter.events import NoteAdded
from sgplan.interpreter.masters import KEY
from sgplan.planner import torch_api

from . import world

pytestmark = pytest.mark.usefixtures("patched")


class Stored:
    """A rank whose plan stores parameters in bf16 with masters, installed in this process."""

    def __init__(self, folder: Path) -> None:
        self.rank, self.kept = world.rank_under(
            folder, 'precision "p" { params = bf16  master = fp32 }'
        )
        self.rank.masters.install()
        self.rank.steps.install()
        self.rank.inner_steps.install()

    def low(self, *values: torch.Tensor) -> list[nn.Parameter]:
        """Parameters of a new root."""
        module = nn.ParameterList([nn.Parameter(value.clone()) for value in values])
        self.rank.masters.store("model", module)
        return list(module)

    def master(self, parameter: torch.Tensor) -> torch.Tensor:
        return self.rank.masters._masters[parameter].detach()

    def notes(self) -> list[str]:
        return [note.text for note in self.kept.of(NoteAdded)]


@pytest.fixture
def stored(patched: None, tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_fifty_fused_steps_equal_an_fp32_reference(stored: Stored) -> None:
    start = [torch.randn(5, 7), torch.randn(5)]
    parameters = stored.low(*start)
    reference = [nn.Parameter(value.clone()) for value in start]
    ours = AdamW(parameters, lr=0.01, fused=True)
    theirs = AdamW(reference, lr=0.01, fused=True)
    memory = [p.data_ptr() for p in parameters]
    for _ in range(50):
        for p, r in zip(parameters, reference, strict=True):
            p.grad = torch.randn_like(p)
            r.grad = p.grad.float()
        ours.step()
        theirs.step()
    for p, r in zip(parameters, reference, strict=True):
        assert torch.equal(stored.master(p), r)
        assert torch.equal(p, r.bfloat16())
        assert torch.equal(ours.state[p]["exp_avg"], theirs.state[r]["exp_avg"])
        assert ours.state[p]["exp_avg"].dtype is torch.float32
    assert [p.data_ptr() for p in parameters] == memory


def test_a_write_of_the_script_is_taken_over_where_it_wrote(stored: Stored) -> None:
    (parameter,) = stored.low(torch.randn(8))
    before = stored.master(parameter).clone()
    parameter.data[:4] = 0.0
    parameter.grad = torch.zeros_like(parameter)
    SGD([parameter], lr=0.1).step()
    assert stored.master(parameter)[:4].tolist() == [0.0] * 4
    assert torch.equal(stored.master(parameter)[4:], before[4:])


def test_a_closure_sees_the_parameters_of_the_script(stored: Stored) -> None:
    (parameter,) = stored.low(torch.ones(4))
    optimizer = torch.optim.LBFGS([parameter], max_iter=3)
    formats: list[torch.dtype] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        formats.extend(p.dtype for p in optimizer.param_groups[0]["params"])
        loss = (parameter - 3).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert set(formats) == {torch.bfloat16}
    assert parameter.tolist() == pytest.approx([3.0] * 4, abs=0.05)
    assert optimizer.param_groups[0]["params"] == [parameter]


# --- hooks ---------------------------------------------------------------------------------------


def test_a_hook_before_the_step_changes_the_gradients_of_the_step(stored: Stored) -> None:
    (parameter,) = stored.low(torch.zeros(4))
    optimizer = SGD([parameter], lr=1.0)

    def clip(*given: Any) -> None:
        nn.utils.clip_grad_norm_([parameter], 1.0)

    optimizer.register_step_pre_hook(clip)
    parameter.grad = torch.full_like(parameter, 100.0)
    optimizer.step()
    assert parameter.tolist() == pytest.approx([-0.5] * 4, rel=1e-2)


def test_a_hook_behind_the_step_reads_the_step_and_its_writes_stay(stored: Stored) -> None:
    (parameter,) = stored.low(torch.zeros(4))
    optimizer = SGD([parameter], lr=1.0)
    seen: list[float] = []

    def clamp(*given: Any) -> None:
        seen.append(parameter[0].item())
        parameter.data.clamp_(-0.5, 0.5)

    optimizer.register_step_post_hook(clamp)
    for _ in range(2):
        parameter.grad = torch.full_like(parameter, -4.0)
        optimizer.step()
    assert seen == [4.0, 4.5]
    assert parameter.tolist() == [0.5] * 4


# --- faults --------------------------------------------------------------------------------------


class Raises(SGD):
    """Moves its parameters in a first step and raises in it."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.steps += 1
        if self.steps == 1:
            raise ArithmeticError("by the script")
        return result


def test_a_step_that_raises_leaves_nothing_swapped(stored: Stored) -> None:
    """The script catches it, restores its weights, and goes on."""
    (parameter,) = stored.low(torch.ones(4))
    optimizer = Raises([parameter], lr=0.1)
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ArithmeticError, match="by the script"):
        optimizer.step()
    assert optimizer.param_groups[0]["params"][0] is parameter
    with torch.no_grad():
        parameter.fill_(7.0)
    optimizer.zero_grad()
    assert parameter.grad is None
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert stored.master(parameter).tolist() == pytest.approx([6.9] * 4)


def test_a_state_saved_after_a_step_that_raised_has_its_masters(stored: Stored) -> None:
    (parameter,) = stored.low(torch.full((4,), 1.001))
    optimizer = Raises([parameter], lr=0.1)
    parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(ArithmeticError):
        optimizer.step()
    (saved,) = optimizer.state_dict()[KEY].values()
    assert torch.equal(saved, torch.full((4,), 1.001))
    assert not saved.requires_grad


# --- optimizers ----------------------------------------------------------------------------------


class OwnList(Optimizer):
    """Moves what it was given when it was built, whatever stands in its groups."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.own = list(parameters)
        super().__init__(self.own, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.own:
            assert parameter.grad is not None
            parameter.data.sub_(parameter.grad, alpha=0.25)


class OldStyle(Optimizer):
    """Moves `param.data`, where it asks for gradients, and clears them by itself."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            if parameter.requires_grad:
                parameter.data.sub_(parameter.grad.data, alpha=2.0**-12)
                parameter.grad = None


def test_an_optimizer_with_a_list_of_its_own_trains(stored: Stored) -> None:
    (parameter,) = stored.low(torch.zeros(4))
    optimizer = OwnList([parameter])
    for _ in range(4):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert parameter.tolist() == stored.master(parameter).tolist() == [-1.0] * 4


def test_an_optimizer_of_the_script_moves_masters_by_less_than_a_parameter_holds(
    stored: Stored,
) -> None:
    (parameter,) = stored.low(torch.ones(4))
    optimizer = OldStyle([parameter])
    for _ in range(3):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert parameter.grad is None
    assert stored.master(parameter).tolist() == [1 - 3 * 2.0**-12] * 4
    assert parameter.tolist() == [1.0] * 4


def test_an_optimizer_that_steps_another_one(stored: Stored) -> None:
    (parameter,) = stored.low(torch.zeros(4))
    inner = SGD([parameter], lr=2.0**-12)

    class Outer(Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            inner.step()

    outer = Outer([parameter], {})
    for _ in range(3):
        parameter.grad = torch.ones_like(parameter)
        outer.step()
        assert parameter.grad is not None
    assert stored.master(parameter).tolist() == [-3 * 2.0**-12] * 4
    assert parameter.tolist() == torch.full((4,), -3 * 2.0**-12).bfloat16().tolist()


@pytest.mark.parametrize("fused", [False, True])
def test_state_made_before_the_first_step_is_in_fp32(stored: Stored, fused: bool) -> None:
    """Adagrad makes its sums when it is built, behind DDP in the format of the parameters."""
    (parameter,) = stored.low(torch.ones(4))
    reference = nn.Parameter(torch.ones(4))
    ours = Adagrad([parameter], lr=0.01, initial_accumulator_value=0.5, fused=fused)
    theirs = Adagrad([reference], lr=0.01, initial_accumulator_value=0.5, fused=fused)
    for _ in range(5):
        parameter.grad = torch.randn_like(parameter)
        reference.grad = parameter.grad.float()
        ours.step()
        theirs.step()
    assert ours.state[parameter]["sum"].dtype is torch.float32
    assert torch.equal(ours.state[parameter]["sum"], theirs.state[reference]["sum"])
    assert torch.equal(stored.master(parameter), reference)


def test_sparse_gradients(stored: Stored) -> None:
    module = nn.Embedding(6, 3, sparse=True)
    stored.rank.masters.store("model", module)
    before = stored.master(module.weight).clone()
    optimizer = torch.optim.SparseAdam(list(module.parameters()), lr=0.5)
    module(torch.tensor([1, 4, 1])).float().sum().backward()
    optimizer.step()
    moved = (stored.master(module.weight) != before).any(1)
    assert moved.tolist() == [False, True, False, False, True, False]
    assert module.weight.grad is not None
    assert module.weight.grad.is_sparse


# --- storage -------------------------------------------------------------------------------------


def test_frozen_parameters_are_stored_and_get_a_master_when_they_are_moved(stored: Stored) -> None:
    module = nn.Linear(3, 2)
    module.weight.requires_grad_(False)
    stored.rank.masters.store("model", module)
    assert module.weight.dtype is module.bias.dtype is torch.bfloat16
    optimizer = SGD(module.parameters(), lr=2.0**-12)
    assert list(optimizer.state_dict().get(KEY, {})) == [1]
    module.weight.requires_grad_(True)
    module.weight.data.fill_(1.0)
    for _ in range(3):
        module.weight.grad = torch.ones_like(module.weight)
        optimizer.step()
    assert stored.master(module.weight)[0].tolist() == [1 - 3 * 2.0**-12] * 3


def test_float_inputs_meet_the_parameters(stored: Stored) -> None:
    """In eager, in one graph, in a copy and in a pickled model; what is no float32 stays."""
    given: list[Any] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor, *, more: dict[str, Any]) -> torch.Tensor:
            given.append((x.dtype, more["mask"][0].dtype, more["ids"].dtype, more["wide"].dtype))
            return self.body(x)

    model = Model()
    stored.rank.masters.store("model", model)
    x = torch.ones(4, 3)
    ids = torch.ones(4, dtype=torch.int64)
    more = {"mask": [x], "ids": ids, "wide": x.double(), "name": "a"}
    torch_api.skip_frames("sgplan.interpreter")
    for each in (model, copy.deepcopy(model), torch.compile(model, backend="eager")):
        assert each(x, more=more).dtype is torch.bfloat16
    assert given == [(torch.bfloat16, torch.bfloat16, torch.int64, torch.float64)] * 3
    assert more["mask"] == [x]
    (hook,) = pickle.loads(pickle.dumps(model._forward_pre_hooks)).values()
    assert hook(model, (x,), {})[0][0].dtype is torch.bfloat16


def test_a_layer_with_running_statistics_stays_in_float32(stored: Stored) -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Linear(5, 2))
    stored.rank.masters.store("model", model)
    assert {str(p.dtype) for p in model[1].parameters()} == {"torch.float32"}
    out = model(torch.randn(4, 2, 5))
    out.float().sum().backward()
    assert out.dtype is model[0].weight.dtype is torch.bfloat16


def test_the_cast_of_inputs_breaks_no_graph(stored: Stored) -> None:
    model = nn.Linear(3, 2)
    stored.rank.masters.store("model", model)
    torch_api.skip_frames("sgplan.interpreter")
    compiled = torch.compile(torch_api.wrap_inline(model), backend="eager", fullgraph=True)
    assert compiled(torch.ones(4, 3)).dtype is torch.bfloat16


def test_loading_leaves_an_optimizer_that_never_stepped_without_state(stored: Stored) -> None:
    (parameter,) = stored.low(torch.ones(4))
    optimizer = AdamW([parameter])
    optimizer.load_state_dict(optimizer.state_dict())
    assert dict(optimizer.state) == {}
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # AdamW makes its state only where there is none


def test_a_state_without_masters_is_said(stored: Stored) -> None:
    """As `torch.distributed.checkpoint` keeps it: state and groups, nothing else."""
    (parameter,) = stored.low(torch.ones(4))
    optimizer = AdamW([parameter])
    for bare in (False, True):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert stored.notes() == []
        state = optimizer.state_dict()
        if bare:
            del state[KEY]
        optimizer.load_state_dict(state)
    optimizer.step()
    assert [note for note in stored.notes() if "has no masters" in note]
    assert optimizer.state[parameter]["exp_avg"].dtype is torch.float32


def test_without_masters_nothing_is_patched(tmp_path: Path) -> None:
    rank, _ = world.rank_under(tmp_path, 'precision "p" { compute = bf16 }')
    wrap = Optimizer.profile_hook_step
    rank.loss_scales.install()
    rank.masters.install()
    rank.inner_steps.install()
    assert Optimizer.profile_hook_step is wrap


# --- what a script may do ------------------------------------------------------------------------


def fitted(parameter: nn.Parameter, optimizer: Optimizer) -> Any:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (parameter - 3).pow(2).sum()
        loss.backward()
        return loss

    return closure


def test_history_in_lists_is_in_fp32_and_loaded_as_saved(stored: Stored) -> None:
    """LBFGS keeps lists of tensors, made in 16 bits by a step before the root was found."""
    (parameter,) = stored.low(torch.ones(4))
    optimizer = torch.optim.LBFGS([parameter], lr=0.1, max_iter=4)
    state = optimizer.state[parameter]
    state["old_dirs"] = [torch.ones(4, dtype=torch.bfloat16)]
    for _ in range(2):
        optimizer.step(fitted(parameter, optimizer))
    loaded = torch.optim.LBFGS([parameter], lr=0.1, max_iter=4)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    saved = optimizer.state[parameter]["old_dirs"]
    assert {each.dtype for each in saved} == {torch.float32}
    assert all(
        torch.equal(one, other)
        for one, other in zip(saved, loaded.state[parameter]["old_dirs"], strict=True)
    )
    loaded.step(fitted(parameter, loaded))


def test_a_state_that_a_hook_of_the_script_changes_is_loaded_as_changed(stored: Stored) -> None:
    first, second = stored.low(torch.ones(3), torch.zeros(3))
    saving = AdamW([first, second], lr=0.01)
    first.grad, second.grad = torch.ones_like(first) / 3, torch.ones_like(second) / 7
    saving.step()
    saved = copy.deepcopy(saving.state_dict())
    loading = AdamW([second, first], lr=0.01)

    def swap(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "state": {0: state["state"][1], 1: state["state"][0]}}

    loading.register_load_state_dict_pre_hook(swap)
    loading.load_state_dict(saved)
    for parameter in (first, second):
        found, expected = loading.state[parameter]["exp_avg"], saving.state[parameter]["exp_avg"]
        assert torch.equal(found, expected)
        assert found.dtype is torch.float32


def test_a_state_for_more_parameters_than_were_saved(stored: Stored) -> None:
    first, second = stored.low(torch.ones(3), torch.zeros(2))
    saving = AdamW([first], lr=0.01)
    first.grad = torch.ones_like(first)
    saving.step()
    loading = AdamW([first, second], lr=0.01)

    def more(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        (group,) = state["param_groups"]
        return {**state, "param_groups": [{**group, "params": [0, 1]}]}

    loading.register_load_state_dict_pre_hook(more)
    loading.load_state_dict(copy.deepcopy(saving.state_dict()))
    assert torch.equal(loading.state[first]["exp_avg"], saving.state[first]["exp_avg"])


def test_a_load_that_fails_keeps_nothing_of_the_file(stored: Stored) -> None:
    (parameter,) = stored.low(torch.ones(3))
    optimizer = AdamW([parameter])
    state = optimizer.state_dict()
    file = {**state, "more": torch.ones(1000)}
    gone = weakref.ref(file["more"])
    file["param_groups"] = []
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(file)
    del file
    assert gone() is None


@pytest.mark.parametrize("kind", [SGD, torch.optim.LBFGS])
def test_what_a_closure_writes_is_taken_over(stored: Stored, kind: Any) -> None:
    (parameter,) = stored.low(torch.ones(4))
    optimizer = kind([parameter], lr=1e-3)
    fit = fitted(parameter, optimizer)

    def closure() -> torch.Tensor:
        with torch.no_grad():
            parameter.clamp_(-0.1, 0.1)
        return fit()

    for _ in range(2):
        optimizer.step(closure)
    assert parameter.abs().max() < 0.2


def test_a_step_writes_only_parameters_that_it_has_a_gradient_for(stored: Stored) -> None:
    one, other = stored.low(torch.ones(3, 3), torch.ones(3, 3))
    optimizer = AdamW([one, other])
    x = torch.ones(3, 3, dtype=torch.bfloat16, requires_grad=True)
    first, second = (x @ one).sum(), (x @ other).sum()
    second.backward()
    optimizer.step()
    optimizer.zero_grad()
    first.backward()
    assert one.grad is not None


def test_an_argument_of_a_step_that_is_no_closure_is_handed_on(stored: Stored) -> None:
    class Careful(SGD):
        def step(self, dry: Any = True) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            given.append(dry)
            if not dry:
                super().step()

    given: list[Any] = []
    (parameter,) = stored.low(torch.ones(4))
    parameter.grad = torch.ones_like(parameter)
    optimizer = Careful([parameter], lr=1.0)
    optimizer.step(False)
    assert given == [False]
    assert parameter.tolist() == [0.0] * 4


def test_a_parameter_that_stands_for_another_gets_a_master(stored: Stored) -> None:
    module = nn.Linear(2, 2)
    nn.init.ones_(module.weight)
    stored.rank.masters.store("model", module)
    module.weight = nn.Parameter(module.weight.detach().clone())
    alone = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = SGD([*module.parameters(), alone], lr=1e-4)
    for _ in range(100):
        for parameter in (module.weight, alone):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert module.weight.flatten().tolist() == pytest.approx([0.99] * 4, abs=4e-3)
    assert alone.tolist() == [1.0, 1.0]


def test_a_gradient_that_a_fused_step_divides_is_divided_for_the_script(stored: Stored) -> None:
    (parameter,) = stored.low(torch.ones(4))
    optimizer = AdamW([parameter], fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale((parameter * 2).sum()).backward()
    scaler.step(optimizer)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [2.0] * 4
