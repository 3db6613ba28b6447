"""Every function of the adapter, used as sgplan uses it, on the torch that is installed.

A new torch release is judged by this file first; a function without a test fails it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.fx as fx
from torch import library, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from sgplan.planner import torch_api

# torch says this of itself when Inductor is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


class Captured:
    """The graphs of one Dynamo capture of a module, forward before backward."""

    def __init__(self, module: nn.Module, *inputs: torch.Tensor) -> None:
        self.sources: list[str] = []
        self.inputs: list[Any] = []
        self.graphs: list[fx.GraphModule] = []

        def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
            self.inputs = list(inputs)
            # Dynamo forgets where its inputs come from when the compile is over.
            nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
            self.sources = [torch_api.input_source(node) for node in nodes]
            torch_api.capture_only(gm, inputs, self._keep, self._keep)
            return gm.forward

        torch.compile(module, backend=backend)(*inputs)

    def _keep(self, gm: fx.GraphModule, inputs: Any) -> Any:
        self.graphs.append(gm)
        return gm.forward

    @property
    def forward(self) -> fx.GraphModule:
        return self.graphs[0]

    @property
    def backward(self) -> fx.GraphModule:
        return self.graphs[1]


X = torch.ones(5, 3)


def test_running_node() -> None:
    seen: list[Any] = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append(torch_api.running_node()))
    assert torch_api.running_node() is None
    y.sum().backward()
    assert seen[0] is not None


def test_compiled_node() -> None:
    loss = torch.compile(nn.Linear(3, 2), backend="aot_eager")(X)
    assert type(loss.grad_fn).__name__ == torch_api.COMPILED_NODE
    eager = (X.clone().requires_grad_() * 2).grad_fn
    assert type(eager).__name__ != torch_api.COMPILED_NODE


def test_compile_phases() -> None:
    before = torch_api.compile_phases()

    def halved(x: torch.Tensor) -> torch.Tensor:
        return (x / 2).cos()

    no_code = torch_api.inductor_config(fx_graph_cache=False)  # a hit has fewer phases
    with no_code, torch_api.functorch_config(enable_autograd_cache=False):
        torch.compile(halved, fullgraph=True)(X)
    after = torch_api.compile_phases()
    assert {"differentiate", "lower", "generate code"} <= after.keys()
    assert after["differentiate"] > before.get("differentiate", 0.0)
    assert all(isinstance(seconds, float) for seconds in after.values())


def test_probe_cpu() -> None:
    from torch._inductor import cpu_vec_isa

    torch_api.probe_cpu()
    before = cpu_vec_isa.valid_vec_isa_list.cache_info().misses
    cpu_vec_isa.pick_vec_isa()
    assert cpu_vec_isa.valid_vec_isa_list.cache_info().misses == before == 1


def test_queue_callback() -> None:
    order: list[str] = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda g: torch_api.queue_callback(lambda: order.append("done")))
    x.register_post_accumulate_grad_hook(lambda p: order.append("accumulated"))
    x.sum().backward()
    assert order == ["accumulated", "done"]


def test_grads_accumulator() -> None:
    weight = nn.Parameter(torch.ones(2))
    node = torch_api.grads_accumulator(weight)
    assert node.variable is weight
    fired: list[bool] = []
    node.register_hook(lambda inputs, outputs: fired.append(weight.grad is not None))
    weight.sum().backward()
    assert fired == [True]


def test_hooks_made() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    made = torch_api.hooks_made()
    weight.sum().backward()
    assert torch_api.hooks_made() == made
    weight.register_hook(lambda grad: None)
    assert torch_api.hooks_made() > made
    made = torch_api.hooks_made()
    weight.register_post_accumulate_grad_hook(lambda parameter: None)
    assert torch_api.hooks_made() > made


def test_storage_uses() -> None:
    flat = torch.zeros(8)
    storage = flat.untyped_storage()
    alone = torch_api.storage_uses(storage._cdata)
    view = flat[2:]
    assert torch_api.storage_uses(storage._cdata) > alone
    del view
    assert torch_api.storage_uses(storage._cdata) == alone


def test_copy_all() -> None:
    targets = [torch.zeros(2), torch.zeros(3)]
    torch_api.copy_all(targets, [torch.ones(2), torch.full((3,), 2.0)])
    assert [t.sum().item() for t in targets] == [2.0, 6.0]


def test_input_value_and_at_most(fresh_dynamo: None) -> None:
    """A bound of a size is a guard: no larger one meets what was captured."""
    seen: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
        seen.append(
            [value for node in nodes if torch.is_tensor(value := torch_api.input_value(node))]
        )
        (size, *_) = [s for s in inputs if isinstance(s, torch.SymInt)]
        assert torch_api.at_most(size) == seen[-1][0].shape[0]
        return gm.forward

    call = torch.compile(lambda x: x * 2, backend=backend, dynamic=True)
    x = torch.ones(6, 3)
    call(x)
    assert torch.equal(seen[0][0], x)
    call(torch.ones(5, 3))
    assert len(seen) == 1
    call(torch.ones(7, 3))
    assert len(seen) == 2


def test_is_finite() -> None:
    assert torch_api.is_finite(torch.ones(2))
    assert torch_api.is_finite(torch.ones(2, dtype=torch.long))
    assert not torch_api.is_finite(torch.tensor([1.0, torch.nan]))
    with torch._subclasses.FakeTensorMode():
        assert not torch_api.is_finite(torch.ones(2))


def test_keep_loaded_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = "_process_value_according_to_param_policy"
    monkeypatch.setattr(torch.optim.Optimizer, policy, vars(torch.optim.Optimizer)[policy])
    kept, cast = (torch.ones(2, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    torch_api.keep_loaded_formats(lambda parameter: parameter is kept)
    optimizer = torch.optim.AdamW([kept, cast])
    saved = optimizer.state_dict()
    state = {"step": torch.tensor(1.0), "exp_avg": torch.ones(2), "more": [torch.ones(2)]}
    optimizer.load_state_dict({**saved, "state": {0: dict(state), 1: dict(state)}})
    for parameter, dtype in ((kept, torch.float32), (cast, torch.bfloat16)):
        found = optimizer.state[parameter]
        assert found["step"].dtype is torch.float32
        assert (found["exp_avg"].dtype, found["more"][0].dtype) == (dtype, dtype)


def test_broadcast_all(group: None) -> None:
    """Of one rank; two are in `interpreter_cases/test_precision_state.py`."""
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    torch_api.broadcast_all(torch_api.default_group(), tensors)
    assert [t.sum().item() for t in tensors] == [2.0, 6.0]


def test_scale_all() -> None:
    tensors = [torch.ones(2), torch.ones(3)]
    torch_api.scale_all(tensors, torch.tensor(0.5, dtype=torch.float64))
    assert all(tensor.eq(0.5).all() for tensor in tensors)


def test_compiled_autograd_enabled() -> None:
    from torch._dynamo import compiled_autograd

    assert not torch_api.compiled_autograd_enabled()
    with compiled_autograd._enable(lambda gm: gm):
        assert torch_api.compiled_autograd_enabled()


def test_default_store(group: None) -> None:
    torch_api.default_store().set("key", "value")
    assert torch_api.default_store().get("key") == b"value"
    assert isinstance(torch_api.default_store(), torch_api.Store)


def test_own_connection(group: None) -> None:
    shared = torch_api.default_store()
    torch_api.own_connection(shared).set("key", "value")
    assert shared.get("key") == b"value"


def test_default_group(group: None) -> None:
    assert torch_api.default_group() is dist.group.WORLD


def test_group_timeout() -> None:
    from datetime import timedelta

    dist.init_process_group(
        "gloo", store=HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=77)
    )
    try:
        assert torch_api.group_timeout(torch_api.default_group()) == 77.0
    finally:
        dist.destroy_process_group()


def test_find_tensors() -> None:
    x, y = torch.ones(1), torch.ones(2)
    assert torch_api.find_tensors({"a": [x], "b": (y, 3)}) == [x, y]


def test_active_ddp(group: None) -> None:
    seen: list[Any] = []

    class Looks(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch_api.active_ddp())
            return super().forward(x)

    ddp = DDP(Looks())
    assert torch_api.active_ddp() is None
    ddp(X)
    assert seen == [ddp]


def test_wrap_inline() -> None:
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    # The `_call_impl` of a class defined in torch.nn is skipped without the frame around it.
    linear = nn.Linear(3, 2)
    torch.compile(torch_api.wrap_inline(linear), backend=backend)(X)
    assert len(graphs) == 1


class _Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale


def test_a_frame_of_its_own_shares_nothing() -> None:
    module = torch.nn.Linear(3, 2)
    codes = {torch_api.wrap_inline(module, name).__code__ for name in ("", "one", "two")}
    assert len(codes) == 3


def test_varies_is_one_compile_and_is_fixed_sees_it() -> None:
    seen: list[tuple[bool, bool]] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        values = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
        shape = next(v.shape for v in values if isinstance(v, torch.Tensor) and v.dim() == 2)
        seen.append((torch_api.is_fixed(shape[0]), torch_api.is_fixed(shape[1])))
        return gm.forward

    call = torch_api.wrap_inline(_Scaled(), "varying")
    torch_api.varies(call, {"L['args'][0]": [True, False], "L['args'][1]": None})
    compiled = torch.compile(call, backend=backend)
    for size in (5, 6, 2):
        assert torch.equal(
            compiled(torch.ones(size, 3), size + 0.5), torch.ones(size, 3) * (size + 0.5)
        )
    assert seen == [(False, True)]


class _Returning(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.reshape(-1) * 2, x


class _Stopped(BaseException):
    pass


def test_wrap_aliased_is_input_alias_open_size_and_multiple_of() -> None:
    seen: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        flat, same = gm.graph.output_node().all_input_nodes
        (rows,) = flat.meta["example_value"].shape
        count = same.meta["example_value"].shape[0]
        seen.append((torch_api.is_input_alias(flat), torch_api.is_input_alias(same)))
        seen.append((torch_api.multiple_of(rows, [count]), torch_api.multiple_of(3, [count])))
        seen.append(torch_api.multiple_of(count + 1, [count]))
        raise _Stopped

    x = torch.ones(5, 3, requires_grad=True)
    opened = torch_api.open_size(x, 0)
    assert opened.requires_grad
    assert not hasattr(x, "_dynamo_weak_dynamic_indices")
    call = torch.compile(
        torch_api.wrap_aliased(_Returning(), "aliased"), backend=backend, dynamic=False
    )
    with pytest.raises(_Stopped):
        call(opened)
    assert seen == [(False, True), (3, None), None]


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_opaque_backward_and_has_gradient_hook() -> None:
    found: list[tuple[bool, set[str]]] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        calls = [n.target for n in gm.graph.nodes if n.op == "call_function"]
        opaque = {torch_api.opaque_backward(target) for target in calls} - {""}
        found.append((torch_api.has_gradient_hook(gm), opaque))
        return gm.forward

    def hooked(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        y.register_hook(lambda gradient: gradient * 2)
        return y

    def again(x: torch.Tensor) -> Any:
        return checkpoint(torch.sin, x, use_reentrant=False)

    x = torch.ones(3, requires_grad=True)
    for function in (hooked, _Doubled.apply, again):
        torch.compile(lambda x, f=function: f(x) + 1, backend=backend)(x)
    assert found == [
        (True, {"register_hook"}),
        (False, {"autograd_function_apply"}),
        (False, set()),
    ]


def test_without_recompile_limit_and_dynamo_error() -> None:
    compiled: list[int] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        compiled.append(1)
        return gm.forward

    call = torch.compile(lambda x: x + 1, backend=backend, dynamic=False, fullgraph=True)
    with torch_api.without_recompile_limit():
        for size in range(2, 14):
            call(torch.ones(size))
    assert len(compiled) == 12

    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch_api.dynamo_error(), match="graph break"):
        torch.compile(broken, backend="eager", fullgraph=True)(torch.ones(2))


class _Deciding(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y * y.shape[0]
        return x + y if x.shape[0] > 3 else x - y


def test_decisions_by_and_depends_on_and_tell_equal_sizes_apart() -> None:
    torch_api.tell_equal_sizes_apart()
    decided: list[str] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        values = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
        shapes = [v.shape for v in values if isinstance(v, torch.Tensor)]
        assert torch_api.depends_on(shapes[0][0] * 2, shapes[0][0])
        assert not torch_api.depends_on(shapes[0][0], shapes[1][1])
        assert not torch_api.depends_on(2, shapes[0][0])
        decided.extend(torch_api.decisions_by([shapes[0][0]]))
        return gm.forward

    call = torch_api.wrap_inline(_Deciding(), "deciding")
    torch_api.varies(call, {"L['args'][0]": [True, False], "L['args'][1]": [True, True]})
    torch.compile(call, backend=backend)(torch.ones(5, 5), torch.ones(5, 5))
    assert len(decided) == 1
    assert "3" in decided[0]


def test_is_captured_call() -> None:
    module = torch.nn.Linear(3, 2)
    assert torch_api.is_captured_call(torch_api.wrap_inline(module).__code__)
    assert torch_api.is_captured_call(torch_api.wrap_inline(module, "one").__code__)
    assert not torch_api.is_captured_call(torch.nn.Linear.forward.__code__)


def test_wrap_inline_shares_what_dynamo_keeps_within_a_class_only() -> None:
    first, second, other = nn.Linear(3, 2), nn.Linear(3, 2), nn.Bilinear(2, 2, 2)
    codes = [torch_api.wrap_inline(module).__code__ for module in (first, second, other)]
    assert codes[0] is codes[1]
    assert codes[0] is not codes[2]
    assert codes[0].co_name != codes[2].co_name


def test_inductor_wrapper_and_replace_inductor_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = torch_api.inductor_wrapper()
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", stock)
    called: list[Any] = []

    class Ours(stock):
        def __call__(self, model_: Any, inputs_: Any, *, config_patches: Any = None) -> Any:
            called.append(self.config)
            return model_.forward

    torch_api.replace_inductor_wrapper(Ours)
    torch.compile(lambda x: x + 1, options={"max_autotune": False})(X)
    assert called == [{"max_autotune": False}]


def test_compile_fx_compile_fx_inner_functorch_config_and_compiler_config() -> None:
    kinds: list[bool] = []

    def inner(gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        kinds.append(bool(kwargs.get("is_backward")))
        return torch_api.compile_fx_inner(gm, inputs, **kwargs)

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        with (
            torch_api.functorch_config(force_non_lazy_backward_lowering=True),
            torch_api.compiler_config(cache_key_tag="test|torch_api"),
        ):
            assert torch.compiler.config.cache_key_tag == "test|torch_api"
            return torch_api.compile_fx(
                gm, inputs, inner_compile=inner, config_patches={}, compile_region_name=None
            )

    x = torch.ones(3, requires_grad=True)
    with torch_api.functorch_config(enable_autograd_cache=False):
        torch.compile(lambda x: (x * 2).sum(), backend=backend)(x).backward()
    assert kinds == [False, True]
    assert x.grad is not None
    assert x.grad.eq(2).all()


def test_inductor_cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert torch_api.inductor_cache_dir() == str(tmp_path)


def test_draw_as_eager() -> None:
    from torch._inductor import config

    def drawn(call: Any) -> torch.Tensor:
        torch.manual_seed(0)
        return call(torch.ones(64))

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    with config.patch(fallback_random=False):
        torch_api.draw_as_eager()
        torch._dynamo.reset()
        assert torch.equal(drawn(torch.compile(dropped)), drawn(dropped))


def test_graph_cache_enabled_and_graph_cache_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert torch_api.graph_cache_enabled()
    with config.patch(force_disable_caches=True):
        assert not torch_api.graph_cache_enabled()
    before = torch_api.graph_cache_hits()
    for _ in range(2):
        torch._dynamo.reset()
        with torch_api.functorch_config(enable_autograd_cache=False):
            torch.compile(torch.sin)(torch.ones(3))
    assert torch_api.graph_cache_hits() == before + 1


def test_capture_only() -> None:
    captured = Captured(Net(), X)
    assert len(captured.graphs) == 2
    targets = [str(node.target) for node in captured.backward.graph.nodes]
    assert "aten.threshold_backward.default" in targets


def test_gradient_inputs() -> None:
    net = Net()
    captured = Captured(net, X)
    places = [p for p in torch_api.gradient_inputs(captured.backward) if p is not None]
    found = {id(captured.inputs[place]) for place in places}
    assert found == {id(parameter) for parameter in net.parameters()}


def test_graph_fake_mode() -> None:
    captured = Captured(Net(), X)
    mode = torch_api.graph_fake_mode(captured.backward)
    with mode:
        assert type(torch.empty(2)).__name__ == "FakeTensor"


def test_dynamo_counters() -> None:
    before = torch_api.dynamo_counters()["stats"]["unique_graphs"]
    torch.compile(lambda x: x + 2, backend="eager")(X)
    assert torch_api.dynamo_counters()["stats"]["unique_graphs"] == before + 1


def test_compilation_metrics() -> None:
    torch.compile(lambda x: x + 3, backend="eager")(X)
    assert torch_api.compilation_metrics()[-1].co_name == "<lambda>"


def test_compile_id_and_compiling_frame() -> None:
    seen: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        seen.append((torch_api.compile_id(), torch_api.compiling_frame()))
        return gm.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert torch_api.compile_id() is None
    assert torch_api.compiling_frame() is None
    compiled = torch.compile(forward, backend=backend, dynamic=False)
    compiled(torch.ones(2))
    compiled(torch.ones(3))
    (first, (code, why)), (second, (_, why_again)) = seen
    assert (first[1], second[1]) == (0, 1)
    assert first[0] == second[0]
    assert code is forward.__code__
    assert why == ""
    assert "size mismatch" in why_again


def test_graph_break_error() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch_api.graph_break_error(), match="graph break"):
        torch.compile(forward, backend="eager", fullgraph=True)(X)


def test_descriptors_plain_input_plain_output_and_is_saved() -> None:
    captured = Captured(Net(), X)
    inputs, outputs = torch_api.descriptors(captured.forward)
    assert sorted(p for d in inputs if (p := torch_api.plain_input(d)) is not None) == [
        *range(len(captured.inputs))
    ]
    assert [
        torch_api.plain_output(d) for d in outputs if torch_api.plain_output(d) is not None
    ] == [0]
    assert any(torch_api.is_saved(d) for d in outputs)
    tangents, _ = torch_api.descriptors(captured.backward)
    assert [torch_api.plain_output(d) for d in tangents].count(0) == 1
    assert torch_api.plain_input(None) is None
    assert torch_api.plain_output(None) is None
    assert not torch_api.is_saved(None)


def cut(
    model: Callable[..., torch.Tensor], *inputs: torch.Tensor, budget: float | None = None
) -> tuple[fx.GraphModule, fx.GraphModule, fx.GraphModule]:
    """Joint graph, forward and backward of a function under a partitioner of ours."""
    seen: list[tuple[fx.GraphModule, ...]] = []

    def partition(joint: fx.GraphModule, given: Any, **kwargs: Any) -> Any:
        copied = torch_api.copied_graph(joint)
        forward, backward = torch_api.min_cut(copied, given, budget, **kwargs)
        seen.append((joint, forward, backward))
        return forward, backward

    def backend(gm: fx.GraphModule, given: Sequence[Any]) -> Any:
        ours = {"custom_partitioner_fn": torch_api.partitioner(partition, "ours")}
        inner: Any = lambda graph, *_, **__: graph.forward  # noqa: E731
        with torch_api.functorch_config(
            enable_autograd_cache=False, force_non_lazy_backward_lowering=True
        ):
            torch_api.compile_fx(gm, given, inner_compile=inner, config_patches=ours)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(*inputs)
    joint, forward, backward = seen[0]
    return joint, forward, backward


def twice(forward: fx.GraphModule, backward: fx.GraphModule) -> set[str]:
    first, second = (
        {n.name for n in gm.graph.nodes if n.op == "call_function"} for gm in (forward, backward)
    )
    return first & second


def test_partitioner_copied_graph_and_min_cut() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).sin().matmul(x).cos().sum()

    x = torch.ones(8, 8, requires_grad=True)
    joint, forward, backward = cut(model, x)
    _, _, saving = cut(model, x, budget=0.01)
    assert not twice(forward, backward) & {"mm"}
    assert {"mm", "sin"} <= twice(forward, saving)
    names = [node.name for node in joint.graph.nodes]
    copied = torch_api.copied_graph(joint)
    assert [node.name for node in copied.graph.nodes] == names
    first, again = (torch_api.partitioner(lambda *_: (joint, joint), "k") for _ in range(2))
    assert first.uuid() == repr(first) == "k"
    assert pickle.dumps(first) == pickle.dumps(again)


def test_mark_recompute_mark_saved_and_recomputed_by_script() -> None:
    node = fx.Graph().placeholder("x")
    torch_api.mark_recompute(node)
    policy = node.meta["recompute"]
    torch_api.mark_saved(node)
    assert policy != node.meta["recompute"]
    assert not torch_api.recomputed_by_script(node)

    def model(x: torch.Tensor) -> torch.Tensor:
        part = checkpoint(lambda t: (t @ t).sin(), x, use_reentrant=False)
        assert isinstance(part, torch.Tensor)
        return part.sum()

    joint, _, _ = cut(model, torch.ones(8, 8, requires_grad=True))
    marked = {n.name for n in joint.graph.nodes if torch_api.recomputed_by_script(n)}
    assert {"mm", "sin"} <= marked


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_mutated_inputs() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return (x * y).sum()

    leaf = torch.ones(4, requires_grad=True)
    joint, forward, _ = cut(model, leaf * 1, leaf)
    assert len(torch_api.mutated_inputs(joint.graph)) == 1
    assert len(torch_api.mutated_inputs(forward.graph)) == 1


def test_input_source() -> None:
    sources = Captured(Net(), X).sources
    assert "L['x']" in sources
    assert any("_parameters['weight']" in source for source in sources)
    bare = fx.Graph().placeholder("y")
    assert torch_api.input_source(bare) == ""


def test_size_hint() -> None:
    sizes: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        sizes.extend(value for value in inputs if isinstance(value, torch.SymInt))
        return gm.forward

    torch.compile(lambda x: x + 1, backend=backend, dynamic=True)(torch.ones(7))
    assert [torch_api.size_hint(size) for size in sizes] == [7]
    assert torch_api.size_hint(3) == 3


def test_flop_formula() -> None:
    formula = torch_api.flop_formula(torch.ops.aten.mm)
    assert formula is not None
    assert formula(torch.ones(2, 3), torch.ones(3, 4), out_val=torch.ones(2, 4)) == 2 * 2 * 3 * 4
    cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert torch_api.flop_formula(cpu) is not None
    assert torch_api.flop_formula(torch.ops.aten.relu) is None


def test_skip_frames_and_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "skipped_by_test"
    package.mkdir()
    (package / "__init__.py").write_text("def double(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    import skipped_by_test  # pyright: ignore[reportMissingImports]

    graphs: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    torch_api.skip_frames("skipped_by_test")
    assert torch.compile(skipped_by_test.double, backend=backend)(X).eq(2).all()
    assert graphs == []
    followed = torch_api.traced(skipped_by_test.double)
    assert torch.compile(lambda x: followed(x), backend=backend, fullgraph=True)(X).eq(2).all()
    assert len(graphs) == 1
    sys.modules.pop("skipped_by_test")


def test_optimize_ddp_mode() -> None:
    config: Any = torch._dynamo.config
    with config.patch(optimize_ddp=False):
        assert torch_api.optimize_ddp_mode() == "no_optimization"
    with config.patch(optimize_ddp="python_reducer"):
        assert torch_api.optimize_ddp_mode() == "python_reducer"


def test_fused_objection() -> None:
    assert torch_api.fused_objection(torch.ones(2)) == ""
    assert torch_api.fused_objection(("name", torch.ones(2))) == ""
    assert "fused" in torch_api.fused_objection(torch.ones(2, dtype=torch.complex64))


def test_formats_behind() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    with torch.autocast("cpu", torch.bfloat16):
        product = weight @ weight
    found = torch_api.formats_behind([product.float().sum(), torch.ones(2)])
    assert found == {torch.float32, torch.bfloat16}


def test_found_inf() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.grad_scaler.GradScaler("cpu")
    found: list[bool] = []
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        found.append(torch_api.found_inf(scaler, optimizer))
        scaler.update()
    assert found == [True, False]


class Watching:
    """Hooks that keep two ops apart and keep the schedule."""

    uuid = "watching"
    steers = True

    def __init__(self, producer: str, reader: str) -> None:
        self.names = producer, reader
        self.units: list[torch_api.Unit] = []
        self.objections: list[str] = []

    def rewrite(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.name == self.names[0]:
                torch_api.compute_at_once(node)

    def apart(self, one: AbstractSet[fx.Node], other: AbstractSet[fx.Node]) -> bool:
        names = [{node.name for node in side} for side in (one, other)]
        first, second = self.names
        return any(first in a and second in b for a, b in (names, names[::-1]))

    def together(self, one: AbstractSet[fx.Node], other: AbstractSet[fx.Node]) -> bool:
        return False

    def objected(self, one: str, other: str, reason: str) -> None:
        self.objections.append(reason)

    def fused(self, units: Sequence[torch_api.Unit]) -> None:
        self.units = list(units)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_fusion_hooks_compute_at_once_and_inductor_config() -> None:
    watching = Watching("relu", "sin")

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        with (
            torch_api.functorch_config(enable_autograd_cache=False),
            torch_api.inductor_config(force_disable_caches=True),
            torch_api.fusion_hooks(watching),
        ):
            return torch_api.compile_fx(gm, inputs)

    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 5)
    assert torch.equal(
        torch.compile(lambda x: torch.relu(x).sin(), backend=backend)(x), torch.relu(x).sin()
    )
    assert [sorted(n.name for n in unit.nodes) for unit in watching.units] == [["relu"], ["sin"]]
    assert [unit.kind for unit in watching.units] == ["loops", "loops"]
    assert "a rule of the plan keeps them apart" in watching.objections


def test_registered_op_op_names_and_has_fake() -> None:
    own = library.Library("sgapi", "DEF")
    own.define("bare(Tensor x) -> Tensor")
    own.define("known(Tensor x) -> Tensor")
    library.register_fake("sgapi::known", torch.empty_like, lib=own)
    assert torch_api.registered_op("sgapi::gone") is None
    assert torch_api.registered_op("nowhere::at_all") is None
    bare, known = (torch_api.registered_op(f"sgapi::{name}").default for name in ("bare", "known"))
    assert torch_api.op_names("sgapi") == ["bare", "known"]
    assert not torch_api.has_fake(bare)
    assert torch_api.has_fake(known)


def test_ops_without_fake_and_break_graph_at() -> None:
    @library.custom_op("sgapi2::bare", mutates_args=())
    def bare(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    op = torch_api.ops_without_fake()["sgapi2::bare"]
    torch_api.break_graph_at(op)
    x = torch.ones(2)
    assert torch.equal(torch.compile(lambda x: bare(x.sin()), backend="eager")(x), 2 * x.sin())
    bare.register_fake(torch.empty_like)
    assert "sgapi2::bare" not in torch_api.ops_without_fake()


def test_fake_mode_and_is_fake() -> None:
    with torch_api.fake_mode():
        assert torch_api.is_fake(torch.ones(2))
    assert not torch_api.is_fake(torch.ones(2))


def test_real_tensors() -> None:
    with torch_api.fake_mode(), torch_api.real_tensors():
        assert torch.ones(2).sum().item() == 2


def test_trace_calls_and_fake_mode_of() -> None:
    seen: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append((gm, *torch_api.trace_calls(gm)))
        return gm.forward

    torch._dynamo.reset()
    layer = torch.nn.Linear(4, 3)
    torch.compile(lambda x: torch.relu(layer(x)), backend=backend)(torch.ones(2, 4))
    ((gm, traced, values),) = seen
    calls = {n.target: n for n in traced.graph.nodes if n.op == "call_function"}
    addmm, relu = calls[torch.ops.aten.addmm.default], calls[torch.ops.aten.relu.default]
    assert values["linear"] is addmm
    assert values["relu"] is relu
    assert addmm.meta["from_node"][0].name == "linear"
    given = next(n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder")
    assert torch_api.fake_mode_of(given) is torch_api.fake_mode_of(relu.meta["val"])


def test_every_function_of_the_adapter_is_exercised_here() -> None:
    tests = " ".join(name for name in globals() if name.startswith("test_"))
    functions = [name for name in torch_api.__all__ if callable(getattr(torch_api, name))]
    untested = [
        name
        for name in functions
        if not isinstance(getattr(torch_api, name), type) and name not in tests
    ]
    assert untested == []
    public = {
        name
        for name, value in vars(torch_api).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == torch_api.__name__
    }
    assert public <= set(torch_api.__all__)


def test_plain_compile_and_its_compile_errors_and_recompile_limit_error() -> None:
    def whole(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    def backend(gm: Any, inputs: Any) -> Any:
        return gm.forward

    call = torch_api.plain_compile(whole, backend, 1)
    assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(torch_api.recompile_limit_error()):
        call(torch.ones(3))
    with pytest.raises(torch_api.compile_errors()):
        torch_api.plain_compile(broken, backend, 1)(torch.ones(2))
