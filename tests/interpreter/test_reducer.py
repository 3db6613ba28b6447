from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from sgplan.interpreter.reducer import VIEWS, Reducer

from .world import reducer_of

pytestmark = pytest.mark.usefixtures("group")

SMALL = "sync { bucket = 1KiB  first_bucket = 256B }"


class Slow:
    """A reduction that is not over before somebody waits for it."""

    def __init__(self, work: dist.Work) -> None:
        self.wait = work.wait

    def is_completed(self) -> bool:
        return False


@pytest.fixture(autouse=True, params=["quick", "slow"])
def reductions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow reduction is awaited, slots are made ahead."""
    start: Any = dist.all_reduce

    def begun(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        work = start(*args, async_op=async_op, **kwargs)
        return Slow(work) if async_op else work

    if request.param == "slow":
        monkeypatch.setattr(dist, "all_reduce", begun)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(7, 33)
        self.head = nn.Linear(33, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def loss_of(net: nn.Module, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return net(torch.randn(4, 7, generator=generator)).pow(2).mean()


def plain_gradients(seed: int = 1) -> list[torch.Tensor]:
    net = Net()
    loss_of(net, seed).backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def armed_backward(reducer: Reducer, loss: torch.Tensor) -> None:
    reducer._rebuild_buckets()
    reducer.prepare_for_backward([loss])
    backward(reducer, loss)


def backward(reducer: Reducer, loss: torch.Tensor, *, create_graph: bool = False) -> None:
    """As the rank does it for a backward without compiled graphs."""
    reducer.begin_backward()
    loss.backward(create_graph=create_graph)
    reducer.end_backward()


def gradients(net: nn.Module) -> list[Any]:
    return [p.grad for p in net.parameters()]


def equal(found: list[Any], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_armed_backward_reduces_every_bucket_once_in_order(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path, SMALL)
    armed_backward(reducer, loss_of(net))
    started = kept.started()
    assert started == [bucket.name for bucket in reducer.setup.buckets]
    assert len(started) > 1
    assert len(kept.waits()) == 1
    assert equal(gradients(net), plain_gradients())


def test_an_unarmed_backward_is_left_alone(tmp_path: Path) -> None:
    net = Net()
    _reducer, kept = reducer_of(net, tmp_path)
    loss_of(net).backward()
    assert kept.events == []
    assert equal(gradients(net), plain_gradients())


def test_the_first_complete_reduction_disarms(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path)
    armed_backward(reducer, loss_of(net))
    assert not reducer.armed
    before = len(kept.events)
    loss_of(net).backward()
    assert len(kept.events) == before


def test_autograd_grad_leaves_it_armed(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path)
    loss = loss_of(net)
    reducer.prepare_for_backward([loss])
    torch.autograd.grad(loss, list(net.parameters()))
    assert reducer.armed
    assert kept.events == []
    backward(reducer, loss_of(net))
    assert kept.started()


def test_accumulated_gradients_are_reduced_together(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    loss_of(net, 1).backward()
    armed_backward(reducer, loss_of(net, 2))
    plain = Net()
    loss_of(plain, 1).backward()
    loss_of(plain, 2).backward()
    assert equal(gradients(net), gradients(plain))


def test_an_unfinished_reduction_is_an_error_at_the_next_forward(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    loss = net.body(torch.ones(2, 7)).sum()
    armed_backward(reducer, loss)
    with pytest.raises(RuntimeError, match=r"finished reduction.*head\.weight, head\.bias"):
        reducer._rebuild_buckets()


def test_a_second_gradient_before_the_first_is_reduced_is_an_error(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    armed_backward(reducer, net.body(torch.ones(2, 7)).sum())
    with pytest.raises(RuntimeError, match=r"ready only once: `body\.(bias|weight)`"):
        net.body(torch.ones(2, 7)).sum().backward()


def settled(tmp_path: Path) -> tuple[Net, Reducer, Any]:
    """After a reduction only few hooks wake the reducer."""
    net = Net()
    reducer, kept = reducer_of(net, tmp_path, "sync { bucket = 1GiB  first_bucket = 1GiB }")
    armed_backward(reducer, loss_of(net))
    net.zero_grad()
    kept.track.entered.clear()
    return net, reducer, kept


def test_parts_that_come_in_another_order_than_before_are_reduced(tmp_path: Path) -> None:
    net, reducer, kept = settled(tmp_path)
    reducer.prepare_for_backward([])
    backward(reducer, net.body(torch.ones(2, 7)).sum())  # what came last comes first
    assert kept.started() == []
    backward(reducer, net.head(torch.ones(2, 33)).sum())
    assert len(kept.started()) == 1
    plain = Net()
    plain.body(torch.ones(2, 7)).sum().backward()
    plain.head(torch.ones(2, 33)).sum().backward()
    assert equal(gradients(net), gradients(plain))


def test_what_comes_between_two_reductions_is_not_counted(tmp_path: Path) -> None:
    net, reducer, kept = settled(tmp_path)
    for seed in (2, 3, 4):
        loss_of(net, seed).backward()
    net.body(torch.ones(2, 7)).sum().backward()
    net.zero_grad()
    armed_backward(reducer, loss_of(net))
    assert len(kept.started()) == 1
    assert equal(gradients(net), plain_gradients())


def test_a_second_gradient_is_an_error_at_the_end_of_its_backward(tmp_path: Path) -> None:
    net, reducer, _ = settled(tmp_path)
    reducer.prepare_for_backward([])
    backward(reducer, net.head(torch.ones(2, 33)).sum())
    with pytest.raises(RuntimeError, match=r"ready only once: `head\.(bias|weight)`"):
        backward(reducer, net.head(torch.ones(2, 33)).sum())


def test_an_order_of_arrival_is_learnt_from_each_reduction(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path, SMALL)
    names = [bucket.name for bucket in reducer.setup.buckets]
    for seed in range(3):
        net.zero_grad()
        kept.track.entered.clear()
        armed_backward(reducer, loss_of(net, seed))
        assert kept.started() == names
        assert equal(gradients(net), plain_gradients(seed))


def test_two_backwards_can_share_one_reduction(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path)
    reducer.prepare_for_backward([])
    for part in (net.body(torch.ones(2, 7)).sum(), net.head(torch.ones(2, 33)).sum()):
        backward(reducer, part)
    assert len(kept.waits()) == 1
    plain = Net()
    plain.body(torch.ones(2, 7)).sum().backward()
    plain.head(torch.ones(2, 33)).sum().backward()
    assert equal(gradients(net), gradients(plain))


def test_a_fresh_gradient_becomes_a_view_of_its_bucket(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    armed_backward(reducer, loss_of(net))
    views = {view.data_ptr() for b in reducer.buffers.values() for view in b.views}
    assert {grad.data_ptr() for grad in gradients(net)} == views


def test_memory_serves_every_step_once_the_script_let_go_of_it(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    memory: set[int] = set()
    for seed in range(4):
        net.zero_grad()
        armed_backward(reducer, loss_of(net, seed))
        assert equal(gradients(net), plain_gradients(seed))
        memory |= {buffer.flat.data_ptr() for buffer in reducer.buffers.values()}
    assert len(memory) == len(reducer.buffers)


def test_an_old_gradient_keeps_its_identity(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = gradients(net)
    armed_backward(reducer, loss_of(net))
    assert all(a is b for a, b in zip(before, gradients(net), strict=True))
    assert equal(before, plain_gradients())


def test_a_gradient_the_script_keeps_does_not_change_in_the_next_step(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    armed_backward(reducer, loss_of(net, 1))
    kept = [grad.detach() for grad in gradients(net)]
    net.zero_grad()
    armed_backward(reducer, loss_of(net, 2))
    assert equal(kept, plain_gradients(1))
    assert equal(gradients(net), plain_gradients(2))


def test_a_users_post_accumulate_hook_sees_the_gradient_it_changes(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    seen: list[int] = []

    def keep(parameter: torch.Tensor) -> None:
        seen.append(id(parameter.grad))

    net.head.weight.register_post_accumulate_grad_hook(keep)
    armed_backward(reducer, loss_of(net))
    assert seen == [id(net.head.weight.grad)]
    assert equal(gradients(net), plain_gradients())


def test_a_users_tensor_hook_changes_what_is_reduced(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    net.head.bias.register_hook(lambda grad: grad * 2)
    armed_backward(reducer, loss_of(net))
    assert torch.equal(gradients(net)[3], 2 * plain_gradients()[3])


def test_find_unused_completes_without_the_unused_and_leaves_their_gradient_none(
    tmp_path: Path,
) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path, SMALL, find_unused=True)
    loss = net.body(torch.ones(2, 7)).sum()
    armed_backward(reducer, loss)
    assert len(kept.started()) == len(reducer.setup.buckets)
    assert net.head.weight.grad is None
    plain = Net()
    plain.body(torch.ones(2, 7)).sum().backward()
    assert torch.equal(gradients(net)[0], gradients(plain)[0])
    assert not reducer.armed


def test_find_unused_keeps_the_gradient_an_unused_parameter_has(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path, find_unused=True)
    old = torch.full_like(net.head.weight, 3.0)
    net.head.weight.grad = old
    armed_backward(reducer, net.body(torch.ones(2, 7)).sum())
    assert net.head.weight.grad is old
    assert old.eq(3.0).all()


def test_find_unused_sends_the_gradient_an_unused_parameter_has(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path, find_unused=True)
    net.head.weight.grad = torch.full_like(net.head.weight, 3.0)
    armed_backward(reducer, net.body(torch.ones(2, 7)).sum())
    buffer, place = reducer._place[reducer.setup.names.index("head.weight")]
    assert buffer.views[place].eq(3.0).all()


def test_find_unused_never_takes_over_in_a_graph(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path, find_unused=True)
    reducer.prepare_for_backward([])
    assert reducer.armed
    assert not reducer.takes_over


def test_only_gradients_nobody_looks_at_can_be_taken_over(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    assert not reducer.takes_over, "unarmed"
    net.body.weight.grad = torch.zeros_like(net.body.weight)
    net.head.bias.register_hook(lambda grad: grad)
    net.head.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    reducer.prepare_for_backward([])
    reducer.begin_backward()
    assert reducer.takes_over
    names = [name for name, _ in net.named_parameters()]
    assert [name for i, name in enumerate(names) if reducer.can_take(i)] == ["body.bias"]


@pytest.mark.parametrize("method", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_is_seen_from_the_next_backward_on(tmp_path: Path, method: str) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    reducer.begin_backward()
    assert reducer.all_free
    handle = getattr(net.body.weight, method)(lambda given: None)
    reducer.begin_backward()
    assert not reducer.all_free
    handle.remove()
    reducer.begin_backward()
    assert reducer.all_free
    net.body.weight.grad = torch.zeros_like(net.body.weight)
    reducer.begin_backward()
    assert not reducer.all_free


def test_a_hook_that_another_thread_is_about_to_put_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    made = RemovableHandle.__init__

    def counted(handle: RemovableHandle, *args: Any, **kwargs: Any) -> None:
        made(handle, *args, **kwargs)
        reducer.begin_backward()  # the handle is counted, the hook not yet on the tensor
        assert reducer.all_free

    with monkeypatch.context() as patch:
        patch.setattr(RemovableHandle, "__init__", counted)
        net.body.weight.register_hook(lambda grad: None)
    reducer.begin_backward()
    assert not reducer.all_free


def test_a_wire_dtype_rounds_once_and_leaves_padding_zero(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path, "sync { wire = bf16 }")
    armed_backward(reducer, loss_of(net))
    rounded = [grad.bfloat16().float() for grad in plain_gradients()]
    assert equal(gradients(net), rounded)
    assert not equal(gradients(net), plain_gradients())
    (buffer,) = reducer.buffers.values()
    assert buffer.wire is None, "freed"
    assert buffer.flat.count_nonzero() <= sum(view.numel() for view in buffer.views)


def test_without_overlap_nothing_starts_before_the_backward_is_over(tmp_path: Path) -> None:
    net = Net()
    body = SMALL.replace("}", " overlap = off }")
    reducer, kept = reducer_of(net, tmp_path, body)
    last: list[int] = []
    # The first layer's gradient comes last; what had started by then?
    net.body.weight.register_hook(lambda grad: last.append(len(kept.started())))
    net.body.bias.register_hook(lambda grad: last.append(len(kept.started())))
    armed_backward(reducer, loss_of(net))
    assert last == [0, 0]
    assert len(kept.started()) == len(reducer.setup.buckets)
    assert equal(gradients(net), plain_gradients())


def test_with_overlap_the_head_starts_before_the_body_is_done(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path, SMALL)
    last: list[int] = []
    net.body.weight.register_hook(lambda grad: last.append(len(kept.started())))
    armed_backward(reducer, loss_of(net))
    assert last[0] >= 1


class Never(dist.Work):
    """A reduction whose peer is gone."""

    def wait(self, *timeout: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.waited = timeout
        raise RuntimeError("Timed out waiting 50ms for recv operation to complete")


def test_a_wait_that_fails_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(root: str, error: BaseException) -> BaseException:
        return RuntimeError(f"`{root}` is lost: {error}")

    net = Net()
    reducer, _ = reducer_of(net, tmp_path, timeout=0.05, lost=lost)
    work = Never()
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **kwargs: work)
    with pytest.raises(RuntimeError, match="`model` is lost: Timed out") as found:
        armed_backward(reducer, loss_of(net))
    assert found.value.__cause__ is not None
    assert work.waited[0].total_seconds() == 0.05


def test_a_sparse_gradient_is_refused_by_name(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    reducer, _ = reducer_of(net, tmp_path)
    with pytest.raises(RuntimeError, match=r"`0\.weight` has a sparse gradient"):
        armed_backward(reducer, net(torch.tensor([1, 2])).sum())


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_double_backward_gradient_is_reduced_without_its_graph(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    loss = loss_of(net)
    reducer.prepare_for_backward([])
    backward(reducer, loss, create_graph=True)
    assert equal([grad.detach() for grad in gradients(net)], plain_gradients())


def test_a_detached_reducer_acts_no_more(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path)
    reducer.prepare_for_backward([])
    reducer.detach()
    loss_of(net).backward()
    assert kept.events == []
    assert equal(gradients(net), plain_gradients())


def test_hooks_do_not_keep_a_reducer_alive(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    gone = weakref.ref(reducer)
    del reducer
    gc.collect()
    assert gone() is None
    loss_of(net).backward()
    assert equal(gradients(net), plain_gradients())


def test_gradients_of_several_dtypes_are_reduced(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.b = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))

    net = Mixed()
    reducer, kept = reducer_of(net, tmp_path)
    armed_backward(reducer, (net.a * 3).sum() + (net.b * 2).sum().double())
    of_a, of_b = gradients(net)
    assert of_a.eq(3).all()
    assert of_b.eq(2).all()
    assert len(kept.started()) == 2


def test_a_reducer_counts_how_gradients_came(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path)
    armed_backward(reducer, loss_of(net))
    assert (reducer.hooked, reducer.taken) == (4, 0)
    assert (reducer.reduced_in_graph, reducer.reduced_by_hooks) == (0, len(kept.started()))


def test_a_gradient_is_taken_before_the_script_can_change_it(tmp_path: Path) -> None:
    net = Net()
    reducer, kept = reducer_of(net, tmp_path)
    reducer.prepare_for_backward([])
    backward(reducer, net.body(torch.ones(2, 7)).sum())
    net.zero_grad()
    backward(reducer, net.head(torch.ones(2, 33)).sum())
    assert len(kept.waits()) == 1
    plain = Net()
    plain.body(torch.ones(2, 7)).sum().backward()
    plain.head(torch.ones(2, 33)).sum().backward()
    assert equal(gradients(net), gradients(plain))


def test_batches_that_come_once_are_forgotten(tmp_path: Path) -> None:
    net = Net()
    reducer, _ = reducer_of(net, tmp_path)
    for _ in range(2 * VIEWS):
        reducer.prepare_for_backward([])
        grads = [torch.ones_like(p) for p in net.parameters()][:1]
        reducer.take(reducer.batch([0]), grads, 0.0)
    assert len(reducer._views) <= VIEWS
