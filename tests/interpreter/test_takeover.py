"""DDP taken over in one process: what the script sees is what stock DDP shows it."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from sgplan.interpreter import backward, events
from sgplan.interpreter.rank import Rank
from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.takeover import Takeover

from .world import Kept, Left, rank_under

pytestmark = pytest.mark.usefixtures("group", "patched")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def batch(seed: int) -> torch.Tensor:
    return torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


def train(model: nn.Module, steps: int = 3) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)).pow(2).mean().backward()
        optimizer.step()
    return model.state_dict()


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


class Script:
    """Stock results first, then the takeover."""

    def __init__(self, folder: Path, body: str = "", mode: str = "apply") -> None:
        self.stock = train(DDP(Net()))
        self.rank: Rank
        self.kept: Kept
        self.rank, self.kept = rank_under(folder, body, mode=mode)
        self.rank._track = self.kept.track
        self.entered: list[Any] = []
        Takeover(self.rank, lambda root, module: self.entered.append(root)).install()
        backward.install(self.rank, None)

    def fallbacks(self) -> list[str]:
        return [event.why for event in self.kept.of(events.FallbackTaken)]


@pytest.fixture
def script(tmp_path: Path, group: None, patched: None) -> Script:
    return Script(tmp_path)


def test_hooks_train_bitwise_like_stock(script: Script) -> None:
    ddp = DDP(Net())
    assert isinstance(ddp.reducer, Reducer)
    assert equal(train(ddp), script.stock)
    assert script.kept.started()
    assert script.fallbacks() == []


def test_a_root_is_found_agreed_on_and_entered(script: Script) -> None:
    ddp = DDP(Net())
    (root,) = script.rank.roots
    assert (root.name, root.kind, root.path) == ("model", "ddp", "hooks")
    assert root.module is ddp.module
    assert script.entered == [root]
    assert [event.root for event in script.kept.of(events.ContractAgreed)] == ["model"]


def test_state_dict_keys_are_the_plain_ones(script: Script) -> None:
    ddp = DDP(Net())
    assert list(ddp.state_dict()) == list(script.stock)
    assert list(ddp.module.state_dict()) == list(Net().state_dict())


@pytest.mark.parametrize("find_unused", [False, True])
def test_find_unused_trains_like_stock(script: Script, find_unused: bool) -> None:
    ddp = DDP(Net(), find_unused_parameters=find_unused)
    assert equal(train(ddp), script.stock)


def test_no_sync_accumulates_and_does_not_reduce(script: Script) -> None:
    ddp = DDP(Net())
    with ddp.no_sync():
        ddp(batch(0)).sum().backward()
    assert script.kept.started() == []
    ddp(batch(1)).sum().backward()
    assert len(script.kept.waits()) == 1
    plain = Net()
    plain(batch(0)).sum().backward()
    plain(batch(1)).sum().backward()
    for mine, theirs in zip(ddp.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_an_evaluation_arms_nothing(script: Script) -> None:
    ddp = DDP(Net())
    with torch.no_grad():
        ddp(batch(0))
    assert isinstance(ddp.reducer, Reducer)
    assert not ddp.reducer.armed
    assert script.rank.roots[0].called == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda ddp: ddp.register_comm_hook(None, allreduce_hook), "register_comm_hook"),
        (lambda ddp: ddp._set_static_graph(), "static_graph"),
        (lambda ddp: ddp._get_ddp_logging_data(), "`logger._get_ddp_logging_data`"),
        (lambda ddp: ddp.reducer._get_zeros_like_grad_buckets(), "`reducer._get_zeros"),
    ],
    ids=["comm_hook", "static_graph", "logger", "reducer"],
)
def test_what_only_stock_can_do_goes_back_to_stock(script: Script, change: Any, why: str) -> None:
    ddp = DDP(Net())
    change(ddp)
    assert not isinstance(ddp.reducer, Reducer)
    assert equal(train(ddp), script.stock)
    assert script.rank.roots[0].path == "stock"
    (found,) = script.fallbacks()
    assert why in found


def test_going_back_to_stock_between_steps_keeps_training(script: Script) -> None:
    ddp = DDP(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        if step == 1:
            ddp.register_comm_hook(None, allreduce_hook)
        optimizer.zero_grad()
        ddp(batch(step)).pow(2).mean().backward()
        optimizer.step()
    assert equal(ddp.state_dict(), script.stock)


def test_join_runs_on_stock(script: Script) -> None:
    ddp = DDP(Net())
    with ddp.join():
        found = train(ddp)
    assert equal(found, script.stock)
    assert script.fallbacks() == ["the script uses join"]


@pytest.mark.parametrize(
    ("argument", "why"),
    [({"static_graph": True}, "the script uses static_graph")],
)
def test_an_argument_only_stock_understands_is_stock_from_the_start(
    script: Script, argument: dict[str, Any], why: str
) -> None:
    ddp = DDP(Net(), **argument)
    assert not isinstance(ddp.reducer, Reducer)
    assert script.fallbacks() == [why]
    assert equal(train(ddp), script.stock)


def test_the_plan_can_ask_for_stock(tmp_path: Path) -> None:
    script = Script(tmp_path, "sync { by = stock }")
    ddp = DDP(Net())
    assert not isinstance(ddp.reducer, Reducer)
    assert script.fallbacks() == ["the plan says `by = stock`"]


def test_sparse_gradients_are_seen_when_ddp_is_entered(script: Script) -> None:
    DDP(nn.Embedding(4, 2, sparse=True))
    assert "makes sparse gradients" in script.fallbacks()[0]


def test_a_deepcopy_of_ddp_trains_on_stock(script: Script) -> None:
    ddp = DDP(Net())
    twin = copy.deepcopy(ddp)
    assert isinstance(ddp.reducer, Reducer)
    assert not isinstance(twin.reducer, Reducer)
    assert equal(train(twin), script.stock)
    assert equal(train(ddp), script.stock)


def test_ddp_survives_pickle(script: Script) -> None:
    ddp = DDP(nn.Linear(3, 2))
    twin = pickle.loads(pickle.dumps(ddp))
    twin(torch.ones(1, 3)).sum().backward()
    assert equal(twin.state_dict(), ddp.state_dict())


def test_wrong_arguments_fail_in_torchs_words(script: Script) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        DDP(Net(), buckets=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(RuntimeError, match="not needed when a module doesn't have any parameter"):
        DDP(nn.ReLU())
    assert script.rank.roots == []


def test_ignored_parameters_stay_local(script: Script) -> None:
    net = Net()
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["head.weight"])
    DDP(net)
    assert "head.weight" not in [name for name, _ in script.rank.roots[0].parameters]


def buckets_of(ddp: DDP) -> list[str]:
    assert isinstance(ddp.reducer, Reducer)
    return list(ddp.reducer.buffers)


def test_two_models_have_buckets_of_their_own(script: Script) -> None:
    first, second = DDP(Net()), DDP(nn.Linear(3, 2))
    assert [root.name for root in script.rank.roots] == ["model", "model1"]
    assert equal(train(first), script.stock)
    second(torch.ones(1, 3)).sum().backward()
    names = [set(buckets_of(ddp)) for ddp in (first, second)]
    assert all(names)
    assert not names[0] & names[1]


def test_a_subclass_of_ddp_is_taken_over(script: Script) -> None:
    class Mine(DDP):
        pass

    ddp = Mine(Net())
    assert isinstance(ddp.reducer, Reducer)
    assert equal(train(ddp), script.stock)


def test_plan_mode_reduces_nothing(tmp_path: Path) -> None:
    script = Script(tmp_path, mode="plan")
    ddp = DDP(Net())
    ddp(batch(0)).sum().backward()
    assert script.kept.started() == []


def test_without_a_process_group_torch_complains_itself(script: Script) -> None:
    dist.destroy_process_group()
    try:
        with pytest.raises((ValueError, RuntimeError), match="process group"):
            DDP(Net())
    finally:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert script.rank.roots == []


def test_leaving_is_how_a_rank_ends(script: Script) -> None:
    DDP(Net())
    with pytest.raises(Left):
        script.rank.leave("refused", "a test", 1)
    assert script.kept.closed
    assert script.kept.of(events.ScriptEnded)[0].how == "refused"


def test_what_a_model_reduced_counts_when_it_is_gone_before_the_step_ends(script: Script) -> None:
    ddp = DDP(Net())
    ddp(batch(0)).sum().backward()
    begun = len(script.kept.started())
    assert begun
    del ddp
    gc.collect()
    assert script.rank.steps.by_hooks == begun
    assert script.rank.steps.own > 0
