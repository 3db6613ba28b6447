"""The one adapter to torch APIs that are private or not documented as stable.

Everything sgplan needs of torch beyond its documented surface goes through here, one function per
name, so that a new torch release is checked in one file; `tests/planner/test_torch_api.py` names
and exercises each. This is the only published contract that imports torch.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.distributed as dist
import torch.fx as fx

__all__ = [
    "Store",
    "active_ddp",
    "capture_only",
    "compilation_metrics",
    "compile_fx",
    "compile_fx_inner",
    "compile_id",
    "compiled_autograd_enabled",
    "compiled_node",
    "compiler_config",
    "compiling_frame",
    "copy_all",
    "default_group",
    "default_store",
    "descriptors",
    "dynamo_counters",
    "find_tensors",
    "flop_formula",
    "found_inf",
    "functorch_config",
    "fused_objection",
    "gradient_inputs",
    "grads_accumulator",
    "graph_break_error",
    "graph_cache_enabled",
    "graph_cache_hits",
    "graph_fake_mode",
    "group_timeout",
    "inductor_cache_dir",
    "inductor_wrapper",
    "input_source",
    "is_saved",
    "optimize_ddp_mode",
    "own_connection",
    "plain_input",
    "plain_output",
    "queue_callback",
    "replace_inductor_wrapper",
    "running_node",
    "scale_all",
    "size_hint",
    "skip_frames",
    "storage_uses",
    "wrap_inline",
]

Store = dist.Store  # pyright: ignore[reportPrivateImportUsage]


def running_node() -> Any:
    """The autograd node whose backward runs now (`torch._C._current_autograd_node`)."""
    return torch._C._current_autograd_node()


def compiled_node(node: Any) -> bool:
    """Whether an autograd node is an AOTAutograd graph's backward (`CompiledFunctionBackward`)."""
    return type(node).__name__ == "CompiledFunctionBackward"


def queue_callback(callback: Callable[[], None]) -> None:
    """Run `callback` when the running backward is done (`Variable._execution_engine`)."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # pyright: ignore[reportAttributeAccessIssue]


def grads_accumulator(parameter: torch.Tensor) -> Any:
    """The AccumulateGrad node of a leaf; it lives only as long as somebody holds it."""
    from torch.autograd.graph import get_gradient_edge

    return get_gradient_edge(parameter).node


def storage_uses(tensor: torch.Tensor) -> int:
    """How many tensors (and storages) share this storage (`torch._C._storage_Use_Count`)."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, in one call (`torch._foreach_copy_`)."""
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def scale_all(tensors: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply each tensor in place by a 0-dim one, in one call (`torch._foreach_mul_`)."""
    torch._foreach_mul_(tensors, factor)  # pyright: ignore[reportPrivateImportUsage]


def compiled_autograd_enabled() -> bool:
    """Whether backward runs under compiled autograd (`torch._dynamo.compiled_autograd`)."""
    from torch._dynamo import compiled_autograd

    return bool(compiled_autograd.compiled_autograd_enabled)


def default_group() -> dist.ProcessGroup:
    """The default process group (`distributed_c10d._get_default_group`)."""
    return dist.distributed_c10d._get_default_group()


def default_store() -> Store:
    """The store of the default process group (`distributed_c10d._get_default_store`)."""
    return dist.distributed_c10d._get_default_store()


def own_connection(store: Store) -> Store:
    """The same store over a connection of its own (`Store.clone`); no wait elsewhere blocks it."""
    return store.clone()  # pyright: ignore[reportAttributeAccessIssue]


def group_timeout(group: dist.ProcessGroup) -> float:
    """Seconds after which a collective of this group is given up."""
    backend = group._get_backend(
        torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    )
    return backend.options._timeout.total_seconds()  # pyright: ignore[reportAttributeAccessIssue]


def find_tensors(output: Any) -> list[torch.Tensor]:
    """Every tensor in a nested output, as DDP finds them (`distributed._find_tensors`)."""
    from torch.nn.parallel.distributed import _find_tensors

    return list(_find_tensors(output))


def active_ddp() -> Any:
    """The DDP module whose stock forward runs now, None outside of one."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel._get_active_ddp_module()


# One code object for each class of modules whose calls are wrapped.
_frames: weakref.WeakKeyDictionary[type, CodeType] = weakref.WeakKeyDictionary()


def wrap_inline(module: torch.nn.Module) -> Callable[..., Any]:
    """A module's call in a frame that Dynamo does not skip (`_dynamo.external_utils.wrap_inline`).

    Dynamo keeps compiled entries, the recompile limit and what it learnt of varying sizes by code
    object. Modules of one class share theirs, as they share their `forward`; others do not.
    """
    from torch._dynamo.external_utils import wrap_inline as wrap

    inner = wrap(module._call_impl)
    assert isinstance(inner, FunctionType)
    cls = type(module)
    if cls not in _frames:
        name = f"{cls.__qualname__}_call_{len(_frames)}"
        _frames[cls] = inner.__code__.replace(co_name=name, co_qualname=name)
    own = FunctionType(
        _frames[cls], inner.__globals__, cls.__qualname__, inner.__defaults__, inner.__closure__
    )
    return functools.update_wrapper(own, module._call_impl)


def inductor_wrapper() -> type:
    """The class `torch.compile(backend="inductor")` makes its backend of."""
    return torch._TorchCompileInductorWrapper


def replace_inductor_wrapper(cls: type) -> None:
    """Let `torch.compile(backend="inductor")` build `cls`, a subclass of `inductor_wrapper()`."""
    torch._TorchCompileInductorWrapper = cls  # pyright: ignore[reportAttributeAccessIssue]


def compile_fx(gm: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """Inductor's whole pipeline (`torch._inductor.compile_fx.compile_fx`).

    `compile_region_name` is dropped where this torch does not know it.
    """
    from inspect import signature

    from torch._inductor.compile_fx import compile_fx as compile_whole

    if "compile_region_name" not in signature(compile_whole).parameters:
        kwargs.pop("compile_region_name", None)
    compiled: Any = compile_whole(gm, inputs, **kwargs)
    return compiled


def compile_fx_inner(gm: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Inductor's compile of one ATen graph (`torch._inductor.compile_fx.compile_fx_inner`)."""
    from torch._inductor.compile_fx import compile_fx_inner as compile_graph

    return compile_graph(gm, inputs, **kwargs)


def functorch_config(**settings: Any) -> AbstractContextManager[Any]:
    """Patch `torch._functorch.config` for a while."""
    from torch._functorch import config

    return config.patch(**settings)


def compiler_config(**settings: Any) -> AbstractContextManager[Any]:
    """Patch `torch.compiler.config` for a while."""
    config: Any = torch.compiler.config
    return config.patch(**settings)


def inductor_cache_dir() -> str:
    """Inductor's cache folder of this user (`_inductor.runtime.cache_dir_utils.cache_dir`)."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return cache_dir()


def graph_cache_enabled() -> bool:
    """Whether compiled ATen graphs are kept on this host (`_inductor.config.fx_graph_cache`)."""
    from torch._inductor import config

    return bool(config.fx_graph_cache) and not config.force_disable_caches


def graph_cache_hits() -> int:
    """ATen graphs of this process that came from that cache (`counters["inductor"]`)."""
    return dynamo_counters()["inductor"]["fxgraph_cache_hit"]


def capture_only(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    forward: Callable[[fx.GraphModule, Sequence[Any]], Any],
    backward: Callable[[fx.GraphModule, Sequence[Any]], Any],
) -> None:
    """Trace the ATen forward and backward of a Dynamo graph as eager would run them; nothing runs.

    Source: `torch._dynamo.backends.common.aot_autograd` with the default partition, which saves
    what eager saves. Both callbacks return a callable that is never called.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    trace = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=default_partition,
        keep_inference_input_mutations=True,
    )
    with functorch_config(force_non_lazy_backward_lowering=True, enable_autograd_cache=False):
        trace(gm, list(inputs))


def gradient_inputs(backward: fx.GraphModule) -> list[int | None]:
    """For each output of a backward graph: the Dynamo input whose gradient it is, else None.

    Read from the AOT descriptors in `output_node.meta["desc"]`
    (`torch._functorch._aot_autograd.descriptors.GradAOTOutput` of a `PlainAOTInput`).
    """
    from torch._functorch._aot_autograd.descriptors import GradAOTOutput, PlainAOTInput

    output = backward.graph.output_node()
    values = output.args[0]
    assert isinstance(values, (list, tuple))
    descriptors = output.meta.get("desc", [None] * len(values))
    found: list[int | None] = []
    for value, descriptor in zip(values, descriptors, strict=False):
        source = descriptor.grad_of if isinstance(descriptor, GradAOTOutput) else None
        is_plain = isinstance(source, PlainAOTInput) and isinstance(value, fx.Node)
        found.append(plain_input(source) if is_plain else None)
    return found


def graph_fake_mode(gm: fx.GraphModule) -> Any:
    """The fake tensor mode in which a graph's `meta["val"]` live."""
    from torch._guards import detect_fake_mode

    values = [node.meta.get("val") for node in gm.graph.nodes]
    return detect_fake_mode([v for v in values if isinstance(v, torch.Tensor)])


def dynamo_counters() -> Any:
    """Dynamo's counters: `frames`, `graph_break`, `unique_graphs`, `aot_autograd`, … ."""
    from torch._dynamo.utils import counters

    return counters


def compilation_metrics() -> list[Any]:
    """The last 64 compiles with frame, seconds and recompile reason."""
    from torch._dynamo.utils import get_compilation_metrics

    return get_compilation_metrics()


def compile_id() -> tuple[int, int] | None:
    """(frame, recompile) of the compile that runs now."""
    from torch._guards import CompileContext

    found = CompileContext.current_compile_id()
    if found is None or found.frame_id is None or found.frame_compile_id is None:
        return None
    return found.frame_id, found.frame_compile_id


def graph_break_error() -> type[BaseException]:
    """What Dynamo raises under `fullgraph=True` where it would break the graph."""
    from torch._dynamo.exc import Unsupported

    return Unsupported


def descriptors(graph: fx.GraphModule) -> tuple[list[Any], list[Any]]:
    """AOT descriptors of a graph's placeholders and of its outputs, None where there is none.

    Source: `node.meta["desc"]` (`torch._functorch._aot_autograd.descriptors`).
    """
    inputs = [node.meta.get("desc") for node in graph.graph.nodes if node.op == "placeholder"]
    output = graph.graph.output_node()
    values = output.args[0]
    count = len(values) if isinstance(values, (list, tuple)) else 1
    return inputs, list(output.meta.get("desc") or [None] * count)


def plain_input(descriptor: Any) -> int | None:
    """The Dynamo input that a placeholder is (`PlainAOTInput`)."""
    from torch._functorch._aot_autograd.descriptors import PlainAOTInput

    return descriptor.idx if isinstance(descriptor, PlainAOTInput) else None


def plain_output(descriptor: Any) -> int | None:
    """The user output that a value is (`PlainAOTOutput`), also as the owner of a tangent."""
    from torch._functorch._aot_autograd.descriptors import PlainAOTOutput, TangentAOTInput

    if isinstance(descriptor, TangentAOTInput):
        descriptor = descriptor.output
    return descriptor.idx if isinstance(descriptor, PlainAOTOutput) else None


def is_saved(descriptor: Any) -> bool:
    """Whether an output of a forward graph is kept for its backward."""
    from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

    return isinstance(descriptor, SavedForBackwardsAOTOutput)


def input_source(placeholder: fx.Node) -> str:
    """How the script reaches an input of a Dynamo graph (`L['args'][0]`), empty when unknown.

    Source: `node.meta["grapharg"].source`.
    """
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    name: Any = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def size_hint(size: Any) -> int:
    """A size as a number: of a symbolic one, the value it was captured with (0 when unknown)."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 0


def flop_formula(op: Any) -> Callable[..., Any] | None:
    """torch's FLOP formula of an op packet (`torch.utils.flop_counter.flop_registry`).

    Attention on CPU has none of its own and counts like flash attention.
    """
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    same = {
        aten._scaled_dot_product_flash_attention_for_cpu: (
            aten._scaled_dot_product_flash_attention
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            aten._scaled_dot_product_flash_attention_backward
        ),
    }
    return flop_registry.get(same.get(op, op))


def compiling_frame() -> tuple[Any, str] | None:
    """(code object, recompile reason) of the frame Dynamo compiles now, None outside of a compile.

    Read from the locals of `torch._dynamo.convert_frame._compile`, the only place that has both
    before the compile is over.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_compile" and "cache_entries" in frame.f_locals:
            return frame.f_locals["code"], frame.f_locals.get("recompile_reason") or ""
        frame = frame.f_back
    return None


def skip_frames(package: str) -> None:
    """Let Dynamo never trace the frames of a package (`torch._dynamo.trace_rules.add`)."""
    from torch._dynamo import trace_rules

    trace_rules.add(package)


def optimize_ddp_mode() -> str:
    """How Dynamo treats DDP (`torch._dynamo.utils.get_optimize_ddp_mode`)."""
    from torch._dynamo.utils import get_optimize_ddp_mode

    return get_optimize_ddp_mode()


def fused_objection(parameter: Any) -> str:
    """Why torch has no fused step for a parameter, empty when it has one.

    Source: `torch.optim.optimizer._device_dtype_check_for_fused`, which torch calls at the first
    step, too late for a choice.
    """
    from torch.optim.optimizer import _device_dtype_check_for_fused as check

    if not isinstance(parameter, torch.Tensor):
        return ""
    try:
        check(parameter)
    except RuntimeError as error:
        return str(error)
    return ""


def found_inf(scaler: Any, optimizer: Any) -> bool:
    """Whether a GradScaler found an infinite gradient of this optimizer in this step."""
    return any(bool(value.item()) for value in scaler._found_inf_per_device(optimizer).values())
