"""The one adapter to torch APIs that are private or not documented as stable.

Everything sgplan needs of torch beyond its documented surface goes through here, one function per
name, so that a new torch release is checked in one file; `tests/planner/test_torch_api.py` names
and exercises each. This is the only published contract that imports torch.
"""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FunctionType
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
import torch.fx as fx
from torch.utils.hooks import RemovableHandle

__all__ = [
    "COMPILED_NODE",
    "FusionHooks",
    "Store",
    "Unit",
    "active_ddp",
    "at_most",
    "break_graph_at",
    "broadcast_all",
    "capture_only",
    "compilation_metrics",
    "compile_errors",
    "compile_fx",
    "compile_fx_inner",
    "compile_id",
    "compile_phases",
    "compiled_autograd_enabled",
    "compiler_config",
    "compiling_frame",
    "compute_at_once",
    "copied_graph",
    "copy_all",
    "decisions_by",
    "default_group",
    "default_store",
    "depends_on",
    "descriptors",
    "draw_as_eager",
    "dynamo_counters",
    "dynamo_error",
    "fake_mode",
    "fake_mode_of",
    "find_tensors",
    "flop_formula",
    "formats_behind",
    "found_inf",
    "functorch_config",
    "fused_objection",
    "fusion_hooks",
    "gradient_inputs",
    "grads_accumulator",
    "graph_break_error",
    "graph_cache_enabled",
    "graph_cache_hits",
    "graph_fake_mode",
    "group_timeout",
    "has_fake",
    "has_gradient_hook",
    "hooks_made",
    "inductor_cache_dir",
    "inductor_config",
    "inductor_wrapper",
    "input_source",
    "input_value",
    "is_captured_call",
    "is_fake",
    "is_finite",
    "is_fixed",
    "is_input_alias",
    "is_saved",
    "keep_loaded_formats",
    "mark_recompute",
    "mark_saved",
    "min_cut",
    "multiple_of",
    "mutated_inputs",
    "op_names",
    "opaque_backward",
    "open_size",
    "ops_without_fake",
    "optimize_ddp_mode",
    "own_connection",
    "partitioner",
    "plain_compile",
    "plain_input",
    "plain_output",
    "probe_cpu",
    "queue_callback",
    "real_tensors",
    "recompile_limit_error",
    "recomputed_by_script",
    "registered_op",
    "replace_inductor_wrapper",
    "running_node",
    "scale_all",
    "size_hint",
    "skip_frames",
    "storage_uses",
    "tell_equal_sizes_apart",
    "trace_calls",
    "traced",
    "varies",
    "without_recompile_limit",
    "wrap_aliased",
    "wrap_inline",
]

Store = dist.Store  # pyright: ignore[reportPrivateImportUsage]


COMPILED_NODE = "CompiledFunctionBackward"
"""The class name of an autograd node that is an AOTAutograd graph's backward."""


running_node: Callable[[], Any] = torch._C._current_autograd_node
"""The autograd node whose backward runs now, None outside of one; called at every `ready` op."""


def hooks_made() -> int:
    """How many hooks Python has put on modules and tensors so far: while the number stands, no
    tensor got one (`torch.utils.hooks.RemovableHandle.next_id`)."""
    return RemovableHandle.next_id


def probe_cpu() -> None:
    """Find out once in this process which vectors the CPU and its compiler have; takes seconds
    (`torch._inductor.cpu_vec_isa.valid_vec_isa_list`)."""
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.valid_vec_isa_list()


def queue_callback(callback: Callable[[], None]) -> None:
    """Run `callback` when the running backward is done (`Variable._execution_engine`)."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # pyright: ignore[reportAttributeAccessIssue]


def grads_accumulator(parameter: torch.Tensor) -> Any:
    """The AccumulateGrad node of a leaf; it lives only as long as somebody holds it."""
    from torch.autograd.graph import get_gradient_edge

    return get_gradient_edge(parameter).node


storage_uses: Callable[[int], int] = torch._C._storage_Use_Count
"""How many tensors and Python objects hold a storage, by its `_cdata`; asked in every backward."""


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, in one call (`torch._foreach_copy_`)."""
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def keep_loaded_formats(wanted: Callable[[torch.Tensor], bool]) -> None:
    """State that an optimizer loads for such a parameter keeps the format in which it was saved;
    torch casts it to the parameter's (`Optimizer._process_value_according_to_param_policy`)."""
    cast = torch.optim.Optimizer._process_value_according_to_param_policy

    def process(
        param: torch.Tensor,
        value: torch.Tensor,
        param_id: int,
        param_groups: list[dict[Any, Any]],
        key: Hashable = None,
    ) -> torch.Tensor:
        if key != "step" and value.is_floating_point() and wanted(param):
            return value.to(param.device)
        return cast(param, value, param_id, param_groups, key)

    torch.optim.Optimizer._process_value_according_to_param_policy = staticmethod(process)


def broadcast_all(group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> None:
    """Give each tensor the value of the group's first rank, as DDP does when it is built
    (`torch.distributed._broadcast_coalesced`)."""
    at_once = 250 * 1024 * 1024  # bytes, as DDP has it
    dist._broadcast_coalesced(group, tensors, at_once, 0)  # pyright: ignore[reportPrivateImportUsage]


def scale_all(tensors: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply each tensor in place by a 0-dim one, in one call (`torch._foreach_mul_`)."""
    torch._foreach_mul_(tensors, factor)  # pyright: ignore[reportPrivateImportUsage]


def compiled_autograd_enabled() -> bool:
    """Whether backward runs under compiled autograd (`torch._dynamo.compiled_autograd`)."""
    loaded = sys.modules.get("torch._dynamo.compiled_autograd")
    return loaded is not None and bool(loaded.compiled_autograd_enabled)


def default_group() -> dist.ProcessGroup:
    """The default process group (`distributed_c10d._get_default_group`)."""
    return dist.distributed_c10d._get_default_group()


_PHASES = {
    "create_aot_dispatcher_function": "differentiate",
    "compile_fx_inner": "lower",
    "GraphLowering.codegen": "generate code",
    "PyCodeCache.load_by_key_path": "load code",
    "async_compile.wait": "compile kernels",
}


def compile_phases() -> dict[str, float]:
    """Seconds so far in the compiler's phases, outer ones with the inner ones in them
    (`torch._dynamo.utils.compilation_time_metrics`)."""
    spent = torch._dynamo.utils.compilation_time_metrics
    return {name: sum(spent[key]) for key, name in _PHASES.items() if key in spent}


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


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that Dynamo follows although the frames of its package are skipped.

    Dynamo goes by the file of a code object (`torch._dynamo.trace_rules.check_file`); this one has
    none. The function must not make functions of its own, comprehensions included.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_filename=f"<{function.__qualname__} of sgplan>")
    return FunctionType(code, function.__globals__, function.__name__)


def wrap_inline(module: torch.nn.Module, frame: str = "") -> Callable[..., Any]:
    """A module's call in a frame that Dynamo does not skip (`_dynamo.external_utils.wrap_inline`).

    Dynamo keeps compiled entries, the recompile limit and what it learnt of varying sizes by code
    object. Modules of one class share theirs, as they share their `forward`; others do not.

    Args:
        frame: a name of its own gives the call a code object of its own.
    """
    from torch._dynamo.external_utils import wrap_inline as wrap

    inner = wrap(module._call_impl)
    assert isinstance(inner, FunctionType)
    cls = type(module)
    if frame:
        code = inner.__code__.replace(co_name=frame, co_qualname=frame)
    elif cls in _frames:
        code = _frames[cls]
    else:
        name = f"{cls.__qualname__}_call_{len(_frames)}"
        code = _frames[cls] = inner.__code__.replace(co_name=name, co_qualname=name)
    own = FunctionType(
        code, inner.__globals__, cls.__qualname__, inner.__defaults__, inner.__closure__
    )
    return functools.update_wrapper(own, module._call_impl)


def wrap_aliased(module: torch.nn.Module, frame: str) -> Callable[..., Any]:
    """A module's call as `wrap_inline` makes it, on aliases of its tensor arguments.

    An argument that the call returns or stores as it is comes out of the graph as such an alias
    (`is_input_alias`); Dynamo has no node for it otherwise.
    """
    from torch._dynamo import external_utils
    from torch.utils import _pytree as pytree

    inner = _on_aliases(module._call_impl, torch.ops.aten.alias.default, pytree.tree_map_only)
    assert isinstance(inner, FunctionType)
    # Dynamo skips frames by their file, ours among them.
    code = inner.__code__.replace(
        co_filename=external_utils.__file__, co_name=frame, co_qualname=frame
    )
    return FunctionType(code, external_utils.__dict__, frame, None, inner.__closure__)


def _on_aliases(fn: Any, alias: Any, tree_map_only: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, alias, (args, kwargs))
        return fn(*args, **kwargs)

    return call


def is_input_alias(node: fx.Node) -> bool:
    """Whether a node of a Dynamo graph is an argument of a `wrap_aliased` call."""
    made = node.target is torch.ops.aten.alias.default
    return made and all(source.op == "placeholder" for source in node.all_input_nodes)


def has_gradient_hook(gm: fx.GraphModule) -> bool:
    """Whether a Dynamo graph calls `Tensor.register_hook`."""
    return any(
        isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target.name() == "register_hook"
        for node in gm.graph.nodes
    )


def opaque_backward(target: Any) -> str:
    """Of a call in a Dynamo graph: what it is, if its backward is not that of its forward's ops.

    Empty for torch's functions and for the higher-order ops that run a body as it stands.
    """
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = target.name()
        return "" if name in _RUN_AS_THEY_STAND else name
    module = str(getattr(target, "__module__", None) or "torch")
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        # A library's op is run as its author says, below what Dynamo sees.
        own = module.partition("torch._ops.")[2] in ("aten", "prims", "prim", "quantized")
        return "" if own else str(target)
    known = ("torch", "_operator", "builtins", "math")
    return "" if module.partition(".")[0] in known else getattr(target, "__qualname__", str(target))


_RUN_AS_THEY_STAND = (
    "tag_activation_checkpoint",
    "wrap",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
)


def open_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """A tensor for tracing, one of whose sizes Dynamo leaves open (`maybe_mark_dynamic`).

    The tensor itself gets no mark, which would be seen by other compiles.
    """
    copy = tensor.detach().requires_grad_(tensor.requires_grad)
    torch._dynamo.maybe_mark_dynamic(copy, dim)
    return copy


def without_recompile_limit() -> Any:
    """A context in which Dynamo compiles a frame as often as its guards ask for."""
    most = 1 << 30
    config: Any = torch._dynamo.config
    return config.patch(recompile_limit=most, accumulated_recompile_limit=most)


def dynamo_error() -> type[BaseException]:
    """What Dynamo raises where it cannot make a graph."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def is_captured_call(code: CodeType) -> bool:
    """Whether a frame is that of a `wrap_inline` call, not a function that the call reaches."""
    return code.co_filename.endswith("external_utils.py")


def varies(call: Callable[..., Any], sources: Mapping[str, Sequence[bool] | None]) -> None:
    """Tell Dynamo before its first compile of a `wrap_inline` call what varies between calls.

    It is written where Dynamo notes what it saw vary (`torch._dynamo.pgo`), so that one compile
    does for what would take two.

    Args:
        sources: by name as Dynamo has it (`L['args'][0]`): for each dim of a tensor whether it
            varies, None for a number.
    """
    from inspect import signature

    from torch._dynamo import pgo

    assert isinstance(call, FunctionType)
    make: Any = pgo.CodeId.make
    closure = (call.__closure__,) if "closure" in signature(make).parameters else ()
    state: Any = pgo.get_code_state()[make(call.__code__, *closure)]
    unset, varying = pgo.auto_unset, pgo.auto_dynamic
    for name, dims in sources.items():
        scalar: Any = varying if dims is None else unset
        size: Any = unset if dims is None else tuple(varying if d else unset for d in dims)
        state.automatic_dynamic[name] = pgo.FrameStateSizeEntry(
            scalar=scalar, size=size, stride=unset
        )


def tell_equal_sizes_apart() -> None:
    """Two sizes that vary and are equal by chance stay two (`_config.use_duck_shape`)."""
    from torch.fx.experimental import _config

    _config.use_duck_shape = False


def depends_on(size: Any, other: Any) -> bool:
    """Whether a symbolic number is computed from the symbols of another."""
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if not isinstance(size, symbolic) or not isinstance(other, symbolic):
        return False
    return bool(size.node.expr.free_symbols & other.node.expr.free_symbols)


def decisions_by(sizes: Sequence[Any]) -> list[str]:
    """What tracing decided by these sizes, which are the same number (`ShapeEnv.guards`).

    Left out: what is so for all of them being equal, and upper bounds, which smaller sizes keep.
    """
    symbolic = [size for size in sizes if isinstance(size, torch.SymInt)]
    symbols: set[Any] = set()
    for size in symbolic:
        # As it was named first, and the name of the equal one that stands for it now.
        symbols |= size.node._expr.free_symbols | size.node.expr.free_symbols
    found: list[str] = []
    for guard in symbolic[0].node.shape_env.guards if symbolic else ():
        expr = guard.expr
        sort = expr.rel_op if expr.is_Relational else ""
        # All these sizes are one: they are equal to each other in every call.
        one = {symbol: min(symbols, key=str) for symbol in symbols}
        equal = sort == "==" and expr.lhs.xreplace(one) == expr.rhs.xreplace(one)
        bound = sort in ("<", "<=") and expr.lhs.is_Symbol and expr.rhs.is_number
        if expr.free_symbols & symbols and not equal and not bound:
            found.append(str(expr))
    return found


def at_most(size: Any) -> int:
    """The value that a size was captured with, as an upper bound: the trace holds for no larger."""
    hint = size_hint(size)
    bool(size <= hint)  # asking leaves a guard
    return hint


def is_finite(value: torch.Tensor) -> bool:
    """Whether every number is known to be finite; of a fake tensor nothing is known."""
    if not value.is_floating_point() and not value.is_complex():
        return True
    try:
        return not is_fake(value) and bool(torch.isfinite(value).all())
    except (RuntimeError, TypeError):  # a value of a transform, such as those of `torch.func`
        return False


def multiple_of(size: Any, symbols: Sequence[Any]) -> int | None:
    """How many times one of these symbolic numbers a size is; None when it is no multiple."""
    for symbol in symbols:
        if depends_on(size, symbol):
            times = size.node.expr / symbol.node.expr
            if times.is_Integer:
                return int(times)
    return None


def is_fixed(size: Any) -> bool:
    """Whether a graph holds for one value of a size only."""
    return not isinstance(size, torch.SymInt) or bool(size.node.expr.is_number)


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


def inductor_config(**settings: Any) -> AbstractContextManager[Any]:
    """Patch `torch._inductor.config` for a while."""
    from torch._inductor import config

    return config.patch(**settings)


def compiler_config(**settings: Any) -> AbstractContextManager[Any]:
    """Patch `torch.compiler.config` for a while."""
    config: Any = torch.compiler.config
    return config.patch(**settings)


def inductor_cache_dir() -> str:
    """Inductor's cache folder of this user (`_inductor.runtime.cache_dir_utils.cache_dir`)."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return cache_dir()


def registered_op(name: str) -> Any:
    """The op packet of `library::name`, None when no library of this process defines it."""
    library, _, op = name.replace(".", "::", 1).partition("::")
    try:
        return getattr(getattr(torch.ops, library), op)
    except AttributeError:
        return None


def op_names(library: str) -> list[str]:
    """Names of the ops a library defines (`torch._C._dispatch_get_all_op_names`)."""
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    return sorted({op.partition(".")[0] for owner, _, op in names if owner == library})


def has_fake(op: torch._ops.OpOverload) -> bool:
    """Whether tracing knows the shape of an op's result (`_library.utils.has_fake_kernel`)."""
    from torch._library.utils import has_fake_kernel

    return has_fake_kernel(op)


def ops_without_fake() -> dict[str, torch._ops.OpOverload]:
    """Ops of `custom_op` that tracing would fail at, by name (`torch._library.custom_ops`)."""
    from torch._library.custom_ops import OPDEFS

    found = {name: definition._opoverload for name, definition in OPDEFS.items()}
    return {name: op for name, op in found.items() if not has_fake(op)}


def break_graph_at(op: torch._ops.OpOverload) -> None:
    """Let Dynamo break the graph at an op instead of failing (`_dynamo.disallow_in_graph`).

    Dynamo's warning that it cannot trace the op is kept back: what is said of it is ours.
    """
    import warnings

    from torch._dynamo import disallow_in_graph

    disallow_in_graph(op)
    disallow_in_graph(op.overloadpacket)
    warnings.filterwarnings("ignore", r"Dynamo does not know how to trace the builtin `torch\._ops")


def fake_mode() -> Any:
    """A mode in which tensors have shapes and no memory (`FakeTensorMode`)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def fake_mode_of(tensor: torch.Tensor) -> Any:
    """The mode that a fake tensor lives in (`FakeTensor.fake_mode`)."""
    from torch._subclasses.fake_tensor import FakeTensor

    assert isinstance(tensor, FakeTensor)
    return tensor.fake_mode


def is_fake(value: object) -> bool:
    """Whether a tensor has no memory."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


def real_tensors() -> AbstractContextManager[Any]:
    """Tensors have memory inside, whatever modes are on (`_disable_current_modes`)."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def draw_as_eager() -> None:
    """Make compiled code draw random numbers as eager does, in every later compile."""
    from torch._inductor import config

    config.fallback_random = True


def graph_cache_enabled() -> bool:
    """Whether compiled ATen graphs are kept on this host (`_inductor.config.fx_graph_cache`)."""
    from torch._inductor import config

    return bool(config.fx_graph_cache) and not config.force_disable_caches


def graph_cache_hits() -> int:
    """ATen graphs of this process that came from that cache (`counters["inductor"]`)."""
    return dynamo_counters()["inductor"]["fxgraph_cache_hit"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One scheduler node of Inductor after fusion.

    Attributes:
        kind: as in `facts.KernelFact`.
        names: of the scheduler nodes in it.
        nodes: FX nodes that it computes, of the graph that was lowered.
        bytes: read and written.
    """

    kind: Literal["loops", "outer loops", "library", "template"]
    names: tuple[str, ...]
    nodes: frozenset[fx.Node]
    bytes: int


class FusionHooks(Protocol):
    """Who steers one compile of an ATen graph, and sees what came of it."""

    @property
    def uuid(self) -> str:
        """Part of the key of compiled code: equal for equal hooks only."""
        ...

    @property
    def steers(self) -> bool:
        """Whether `apart` and `together` are to be asked at all."""
        ...

    def rewrite(self, graph: fx.Graph) -> None:
        """Change the graph that is lowered; the last of all graph passes."""
        ...

    def apart(self, one: AbstractSet[fx.Node], other: AbstractSet[fx.Node]) -> bool:
        """Whether two units that compute these nodes must not become one."""
        ...

    def together(self, one: AbstractSet[fx.Node], other: AbstractSet[fx.Node]) -> bool:
        """Whether two units that compute these nodes shall become one."""
        ...

    def objected(self, one: str, other: str, reason: str) -> None:
        """The scheduler did not fuse two units, named by their scheduler nodes."""
        ...

    def fused(self, units: Sequence[Unit]) -> None:
        """The schedule after fusion."""
        ...


def compute_at_once(node: fx.Node) -> None:
    """Have Inductor store this node's value instead of computing it inside its readers."""
    node.meta["inductor_realize_to_strides"] = True


@contextmanager
def fusion_hooks(hooks: FusionHooks) -> Iterator[None]:
    """Let `hooks` steer the compiles of this thread in the `with` block, and no others.

    A pass behind the graph passes, one behind the scheduler's fusion, and a choices handler set
    for this thread only; each is part of Inductor's cache key. The script's own passes run first.
    """
    from torch._inductor import config, scheduler
    from torch._inductor.choices import InductorChoices
    from torch._inductor.custom_graph_pass import CustomGraphPass, CustomSchedulerPass
    from torch._inductor.virtualized import V

    computed = _Computed()
    theirs, behind = config.post_grad_custom_post_pass, config._post_fusion_custom_pass
    choices: Any = type(V.choices) if isinstance(V.choices, InductorChoices) else InductorChoices

    class Rewrite(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            for each in _as_list(theirs):
                each(graph)
            hooks.rewrite(graph)

        def uuid(self) -> Any:
            return (hooks.uuid, *[_pass_uuid(each) for each in _as_list(theirs)])

        def __reduce__(self) -> Any:
            return str, (str(self.uuid()),)

    class Read(CustomSchedulerPass):
        def __call__(self, nodes: Any) -> Any:
            if behind is not None:
                nodes = behind(nodes)
            hooks.fused([unit for node in nodes if (unit := _unit(node, computed)) is not None])
            return nodes

        def uuid(self) -> Any:
            return (hooks.uuid, None if behind is None else _pass_uuid(behind))

        def __reduce__(self) -> Any:
            return str, (str(self.uuid()),)

    class Choose(choices):
        def can_fuse(self, scheduler: Any, one: Any, other: Any, score: int) -> bool:
            mine, its = computed(one), computed(other)
            if hooks.apart(mine, its):
                scheduler_why(one, other)("a rule of the plan keeps them apart")
                return False
            if not (hooks.together(mine, its) or super().can_fuse(scheduler, one, other, score)):
                return False
            # What is said later, of legality, replaces this; a backend refuses without a word.
            names = one.get_name(), other.get_name()
            hooks.objected(*names, "the backend of this device does not join their loops")
            return True

        def score_fusion(self, scheduler: Any, one: Any, other: Any) -> Any:
            score = super().score_fusion(scheduler, one, other)
            shall = hooks.together(computed(one), computed(other))
            return _first(score) if shall else score

        def uuid(self) -> str:
            return hooks.uuid

    scheduler_why: Any = scheduler.WhyNoFuse
    say = scheduler_why.__call__

    def noted(self: Any, reason: str, *args: Any) -> None:
        say(self, reason, *args)
        hooks.objected(self.name1, self.name2, reason % args if args else reason)

    with ExitStack() as stack:
        patches: dict[str, Any] = {
            "post_grad_custom_post_pass": Rewrite(),
            "_post_fusion_custom_pass": Read(),
        }
        if hooks.steers:
            chosen = Choose()
            stack.enter_context(V.set_choices_handler(chosen))
            patches["inductor_choices_class"] = lambda: chosen
            scheduler_why.__call__ = noted
            stack.callback(setattr, scheduler_why, "__call__", say)
        stack.enter_context(config.patch(patches))
        yield


def _as_list(passes: Any) -> list[Any]:
    if passes is None:
        return []
    return list(passes) if isinstance(passes, (list, tuple)) else [passes]


def _pass_uuid(each: Any) -> Any:
    """None, which Inductor refuses to cache with, for a pass that does not name itself."""
    return each.uuid() if hasattr(each, "uuid") else None


def _first(score: Any) -> Any:
    """A fusion score that comes before all others."""
    if isinstance(score, tuple):
        return (score[0] + 1000, *score[1:])
    return replace(score, template_score=score.template_score + 1000)


class _Computed:
    """Which FX nodes a scheduler node computes.

    Inductor's `origins` also name what an operand was made of before it was stored; here a walk up
    from the node's results ends at what is read from memory.
    """

    def __init__(self) -> None:
        self._of: dict[str, frozenset[fx.Node]] = {}

    def __call__(self, node: Any) -> frozenset[fx.Node]:
        return frozenset().union(*[self._part(part) for part in node.get_nodes()])

    def _part(self, part: Any) -> frozenset[fx.Node]:
        name = part.get_name()
        if name not in self._of:
            self._of[name] = frozenset() if part.node is None else self._walked(part)
        return self._of[name]

    def _walked(self, part: Any) -> frozenset[fx.Node]:
        from torch._inductor import ir
        from torch._inductor.virtualized import V

        origins = {n for n in part.node.get_origins() if n.op == "call_function"}
        foreign = {n for n in origins if _is_foreign(n.target)}
        if foreign and isinstance(part.node, ir.ExternKernel):
            return frozenset(foreign)
        origins -= foreign  # its operands, stored for it
        made = {buffer.node.get_origin_node() for buffer in part.get_outputs()} & origins
        pending = list(made or {n for n in origins if origins.isdisjoint(n.users)})
        buffers: list[Any] = [V.graph.try_get_buffer(d.name) for d in part.read_writes.reads]
        stored = {b.get_origin_node() for b in buffers if hasattr(b, "get_origin_node")}
        found: set[fx.Node] = set(pending)
        while pending:
            for before in pending.pop().all_input_nodes:
                if before in origins and before not in stored and before not in found:
                    found.add(before)
                    pending.append(before)
        return frozenset(found)


def _is_foreign(op: object) -> bool:
    """Whether only a call of the op itself computes it."""
    return isinstance(op, torch._ops.OpOverload) and op.namespace not in ("aten", "prims")


def _unit(node: Any, computed: _Computed) -> Unit | None:
    """None for what runs nothing."""
    from torch._inductor import ir, scheduler
    from torch._inductor.codegen.cpp import OuterLoopFusedSchedulerNode

    # One result of a call with several stands for itself, and runs nothing.
    if isinstance(node, scheduler.NopKernelSchedulerNode) or isinstance(node.node, ir.MultiOutput):
        return None
    kind: Any = "loops"
    if isinstance(node, OuterLoopFusedSchedulerNode):
        kind = "outer loops"
    elif isinstance(node, scheduler.ExternKernelSchedulerNode):
        kind = "library"
    elif node.is_template():
        kind = "template"
    names = tuple(part.get_name() for part in node.get_nodes())
    return Unit(kind, names, computed(node), int(node.get_read_write_buffers_sizes()))


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


def trace_calls(gm: fx.GraphModule) -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    """The ATen ops below autograd that a Dynamo graph calls, forward only; nothing runs.

    Nodes carry the marks of the Dynamo node that called them (`torch.fx.traceback`), first of all
    its name in `from_node`. Source: how AOTAutograd calls `make_fx`.

    Returns:
        The graph, and for each node of `gm` that makes a tensor or a size, who has its value.
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    gm = _with_named_bodies(gm)
    values: dict[str, Any] = {}

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat)):
                values[n.name] = value
            return value

    def call(*arguments: Any) -> dict[str, Any]:
        Noting(gm).run(*arguments)
        return values

    inputs = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    mode = fake_mode_of(next(value for value in inputs if is_fake(value)))
    with preserve_node_meta(), torch.no_grad(), mode:
        traced = make_fx(call, _allow_non_fake_inputs=True)(*inputs)
    made = traced.graph.output_node().args[0]
    assert isinstance(made, dict)
    return traced, {str(name): node for name, node in made.items() if isinstance(node, fx.Node)}


def _with_named_bodies(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy in which no node inside a higher-order op has the name of another node."""
    gm = copy.deepcopy(gm)
    for path, body in gm.named_modules():
        if path and isinstance(body, fx.GraphModule):
            for node in body.graph.nodes:
                if node.op != "output":
                    node._rename(f"{path.replace('.', '_')}_{node.name}_inside")
            body.recompile()
    return gm


def partitioner(cut: Callable[..., tuple[fx.GraphModule, fx.GraphModule]], key: str) -> Any:
    """A `custom_partitioner_fn` for Inductor's config: what cuts joint graphs in two.

    Args:
        cut: called with the joint graph behind Inductor's passes, its inputs, and what
            `min_cut` takes by name.
        key: part of the key of both caches.
    """
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class Partitioner(CustomPartitionerFn):
        def __call__(
            self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            return cut(gm, joint_inputs, **kwargs)

        def uuid(self) -> str:
            return key

        def __repr__(self) -> str:
            return key

        # What the caches' keys are made of is pickled.
        def __reduce__(self) -> Any:
            return str, (key,)

    return Partitioner()


def min_cut(
    joint: fx.GraphModule, inputs: Sequence[Any], budget: float | None, **given: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward of a joint graph, which is changed (`min_cut_rematerialization_…`).

    Torch keeps the random state for every marked op with the tag of random ops, attention without
    dropout among them. None of the plan's marks is on an op that draws, so that is left to the ops
    of the script's own checkpoints.

    Args:
        budget: `activation_memory_budget`, between 0 and 1 and neither of them; None leaves the
            script's own.
        given: what Inductor passes to a partitioner.
    """
    from torch._functorch import partitioners

    settings = {} if budget is None else {"activation_memory_budget": budget}
    keeps_states = partitioners.has_recomputable_rng_ops

    def of_script(gm: fx.GraphModule) -> bool:
        return keeps_states(gm) and any(map(recomputed_by_script, gm.graph.nodes))

    partitioners.has_recomputable_rng_ops = of_script
    try:
        with functorch_config(**settings):
            cut = partitioners.min_cut_rematerialization_partition(joint, inputs, **given)
    finally:
        partitioners.has_recomputable_rng_ops = keeps_states
    _describe_saved(cut[0], joint, given["num_fwd_outputs"])
    return cut


def _describe_saved(forward: fx.GraphModule, joint: fx.GraphModule, outputs: int) -> None:
    """Descriptors for a forward graph that lost them when random states were added to it."""
    from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput
    from torch.utils._pytree import tree_leaves

    output = forward.graph.output_node()
    if "desc" in output.meta:
        return
    assert isinstance(output.args[0], (list, tuple))
    own = tree_leaves(joint.graph.output_node().meta["desc"], is_leaf=_is_descriptor)[:outputs]
    saved = len(output.args[0]) - len(own)
    output.meta["desc"] = [*own, *(SavedForBackwardsAOTOutput(i) for i in range(saved))]


def copied_graph(joint: fx.GraphModule) -> fx.GraphModule:
    """A copy whose nodes can be marked; names, metadata and submodules are those of `joint`."""
    graph = fx.Graph()
    copied: Any = graph.graph_copy(joint.graph, {}, return_output_node=True)
    values, output = copied
    graph.output(values).meta = dict(output.meta)
    return fx.GraphModule(joint, graph)


def mark_recompute(node: fx.Node) -> None:
    """Have the min cut compute a node again (`node.meta["recompute"]`)."""
    from torch.utils.checkpoint import CheckpointPolicy

    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def mark_saved(node: fx.Node) -> None:
    """Keep the min cut from computing a node again."""
    from torch.utils.checkpoint import CheckpointPolicy

    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def recomputed_by_script(node: fx.Node) -> bool:
    """Whether a node stands in a `torch.utils.checkpoint` of the script (`ac_graph_id`)."""
    return "ac_graph_id" in node.meta


def mutated_inputs(graph: fx.Graph) -> list[fx.Node]:
    """The placeholders whose tensors are written behind the graph, by what it returns for them.

    Source: `InputMutationAOTOutput` among the output descriptors. What is written inside of the
    graph is not among them.
    """
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
    from torch.utils._pytree import tree_leaves

    found = tree_leaves(graph.output_node().meta.get("desc", ()), is_leaf=_is_descriptor)
    written = [d.mutated_input for d in found if isinstance(d, InputMutationAOTOutput)]
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    return [node for node in nodes if node.meta.get("desc") in written]


def _is_descriptor(value: Any) -> bool:
    return not isinstance(value, (list, tuple))


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


# Before anything of ours takes its place.
_compile = torch.compile


def plain_compile(
    function: Callable[..., Any], backend: Callable[..., Any], limit: int
) -> Callable[..., Any]:
    """`torch.compile(function)` as torch has it, whole, with static shapes; no part of a plan.

    Args:
        limit: compiles; the next one is an error.
    """
    compile_whole: Any = _compile
    return compile_whole(
        function, backend=backend, fullgraph=True, dynamic=False, recompile_limit=limit
    )


def recompile_limit_error() -> type[BaseException]:
    """What a compile beyond its limit fails with (`_dynamo.exc.FailOnRecompileLimitHit`)."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    return FailOnRecompileLimitHit


def compile_errors() -> tuple[type[BaseException], ...]:
    """What a compile fails with, before anything ran (`_dynamo.exc`, `_inductor.exc`)."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    return TorchDynamoException, recompile_limit_error(), InductorError


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


def input_value(placeholder: fx.Node) -> Any:
    """What an input of a Dynamo graph is in the call that is captured, None when unknown.

    Source: `node.meta["grapharg"].example`.
    """
    return getattr(placeholder.meta.get("grapharg"), "example", None)


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


def formats_behind(values: Iterable[torch.Tensor]) -> set[torch.dtype]:
    """The dtypes of all values with a gradient that some values are made of."""
    pending = [value.grad_fn for value in values if value.grad_fn is not None]
    known: set[Any] = set()
    found: set[torch.dtype] = set()
    while pending:
        node = pending.pop()
        if node in known:
            continue
        known.add(node)
        found.update(given.dtype for given in node._input_metadata)
        pending += [after for after, _ in node.next_functions if after is not None]
    return found


def found_inf(scaler: Any, optimizer: Any) -> bool:
    """Whether a GradScaler found an infinite gradient of this optimizer in this step."""
    return any(bool(value.item()) for value in scaler._found_inf_per_device(optimizer).values())
