"""One owner of every compile: the script's `torch.compile`, `Module.compile`, and the plan's own.

`torch.compile(backend="inductor")` builds its backend of one class; that class is replaced by a
subclass that compiles under the plan, with the script's mode, options, dynamic and fullgraph kept.
A foreign backend is left alone and named. Roots the plan compiles are captured in place, so that
`state_dict` keys, hooks, `deepcopy` and pickling stay as in the plain run.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Capture
from sgplan.interpreter import control_flow, events
from sgplan.interpreter.graph_backend import GraphBackend, planned_wrapper
from sgplan.interpreter.guarded import Guarded
from sgplan.interpreter.rank import Rank
from sgplan.interpreter.roots import Root, names_class, plain_name, trainable, unwrapped
from sgplan.planner import torch_api
from sgplan.planner.facts import Engine
from sgplan.planner.graph_need import changes_any, clause_needing, needing_graph
from sgplan.planner.guard_lines import holding, needs_graph

OURS = (None, "inductor", "sgplan")
_DYNAMIC = {"on": True, "off": False}
_EAGER = "`capture.engine = eager`"


class _Traced(BaseException):
    """The graph is known; nothing of the call shall run."""


class Compiling:
    """Compiles for one rank.

    Args:
        rank: reports, knows roots and plan.
        backend: what compiles a graph.
    """

    def __init__(self, rank: Rank, backend: GraphBackend) -> None:
        self._rank = rank
        self._backend = backend
        self._compile = torch.compile
        self._compile_module = nn.Module.compile
        # Of parts that the script compiles, once known.
        self._owners: weakref.WeakKeyDictionary[nn.Module, Root] = weakref.WeakKeyDictionary()
        self._prepared = False
        self._limit = 0  # of recompiles of one instance, known when something is compiled
        self._alike = 1  # instances of the class that is compiled most often

    # --- patches ---------------------------------------------------------------------------------

    def install(self) -> None:
        """Patch `torch.compile`, `Module.compile` and the Inductor backend class."""
        torch_api.replace_inductor_wrapper(planned_wrapper(self._backend))
        self._rank.guards.call_code = Compiling._whole.__code__
        owner = self

        @functools.wraps(self._compile)
        def compile(model: Any = None, **given: Any) -> Any:
            if model is None:
                return lambda model: compile(model, **given)
            return owner.script_compiles(model, given)

        @functools.wraps(self._compile_module)
        def compile_module(self: nn.Module, *args: Any, **given: Any) -> None:
            owner.script_compiles_in_place(self, args, given)

        torch.compile = compile
        nn.Module.compile = compile_module

    def prepare(self) -> None:
        """Before the first compile: Dynamo shall not trace our frames, and see hooks added late."""
        if self._prepared:
            return
        self._prepared = True
        for package in ("sgplan", "sgplan.interpreter", "sgplan.planner", "sgplan.grammar"):
            torch_api.skip_frames(package)
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        self._rank.report(self._rank.planner.device(self._rank.plan))
        if self._rank.mode == "verify":
            torch_api.draw_as_eager()
        # Numbers of a module vary after their first change, as arguments do; sizes that are equal
        # by chance must not become one size where a guard lets one of them vary.
        torch._dynamo.config.allow_unspec_int_on_nn_module = True
        if self._rank.guards.any:
            torch_api.tell_equal_sizes_apart()
        capture = self._rank.plan.capture_of(None)
        config: Any = torch._dynamo.config
        if "recompiles" in capture.written:
            config.recompile_limit = capture.recompiles
        self._limit = config.recompile_limit
        if all(block.engine == "eager" for block in (capture, *self._rank.plan.captures)):
            torch.compiler.set_stance("force_eager")

    def script_compiles(self, model: Any, given: dict[str, Any]) -> Any:
        """`torch.compile(model, …)` of the script."""
        self.prepare()
        if given.get("backend") not in OURS:
            self._foreign(model, given["backend"])
            return self._compile(model, **given)
        if given.get("backend") == "sgplan":
            given["backend"] = "inductor"
        if isinstance(model, DDP):
            return self._compile_ddp(model, given)
        if not isinstance(model, nn.Module):
            return self._compile_function(model, given)
        compiled: Any = self._compile(model, **given)
        self._found(model)
        # Torch would compile `Module.__call__`, which is watched and hence breaks the graph.
        inner = unwrapped(model)
        compiled.forward = self._counted(self._captured(inner, given), inner, given)
        return compiled

    def _compile_function(self, function: Any, given: dict[str, Any]) -> Any:
        """A function belongs to no model: what the plan says of all models holds for it."""
        wish = self._rank.capture_of(None)
        self._override(wish, given)
        compiled = self._compile(function, **given)
        if wish.engine == "eager":
            return torch.compiler.set_stance("force_eager")(compiled)
        return compiled

    def script_compiles_in_place(
        self, module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
    ) -> None:
        """`module.compile(…)` of the script."""
        self.prepare()
        if given.get("backend") not in OURS:
            self._foreign(module, given["backend"])
            self._compile_module(module, *args, **given)
            return
        target = unwrapped(module)
        self._found(target)
        target._compiled_call_impl = self._counted(self._captured(target, given), target, given)

    def _compile_ddp(self, ddp: DDP, given: dict[str, Any]) -> Any:
        """The inner module is the graph; the wrapper only has to look as the script expects."""
        inner = unwrapped(ddp)
        self._found(inner)
        root = self._rank.root_of(inner)
        call = self._captured(inner, given)
        inner._compiled_call_impl = call if root is None else self._called_of(root, call)
        outer: Any = self._compile(ddp, **given)
        outer.forward = ddp.__call__
        return outer

    def _foreign(self, model: Any, backend: Any) -> None:
        name = (
            backend
            if isinstance(backend, str)
            else getattr(backend, "__name__", type(backend).__name__)
        )
        root = self._rank.root_of(unwrapped(model)) if isinstance(model, nn.Module) else None
        why = f"the script compiles with backend `{name}`, which is left alone"
        self._rank.once(
            events.FallbackTaken, "" if root is None else root.name, "no in-graph reductions", why
        )

    def _override(self, capture: Capture, given: dict[str, Any]) -> None:
        """What the plan writes wins over the script's arguments, and is printed."""
        if "dynamic" in capture.written and capture.dynamic != "auto":
            self._set(given, "dynamic", _DYNAMIC[capture.dynamic])
        if capture.graph == "whole":
            self._set(given, "fullgraph", True)

    def _set(self, given: dict[str, Any], name: str, value: bool) -> None:
        if name in given and given[name] != value:
            self._rank.once(
                events.SettingOverridden, f"torch.compile({name}=)", str(given[name]), str(value)
            )
        given[name] = value

    # --- capture ---------------------------------------------------------------------------------

    def _found(self, module: nn.Module) -> None:
        """The script compiles a module: a root of its own unless DDP has or gets it."""
        module = unwrapped(module)
        self._rank.compiled.add(module)
        self._allow_for(module)
        root = self._rank.root_of(module)
        if root is None or self._rank.capture_of(root).engine == "eager":
            return
        if root.path != "stock":
            self._mark_compiled(root, "the script compiles it")
            self._rank.describe(root)

    def _allow_for(self, module: nn.Module) -> None:
        """Instances of one class share a code object, and with it Dynamo's limit: it counts for
        each of them."""
        config: Any = torch._dynamo.config
        alike = sum(type(other) is type(module) for other in self._rank.compiled)
        self._alike = max(self._alike, alike)
        config.recompile_limit = self._limit * self._alike
        config.accumulated_recompile_limit = max(
            config.accumulated_recompile_limit, config.recompile_limit
        )

    def compiles(self, module: nn.Module) -> bool:
        """Whether the script compiles this module or a part of it."""
        parts = {id(part) for part in module.modules()}
        return any(id(unwrapped(compiled)) in parts for compiled in self._rank.compiled)

    def _mark_compiled(self, root: Root, why: str) -> None:
        """The root's calls run compiled, its gradients are reduced in-graph where that is safe."""
        root.engine = "inductor"
        root.why = why
        if root.path == "hooks" and self._rank.sync_of(root).by in ("auto", "in_graph"):
            root.path = "in_graph"

    def entering(self, root: Root, module: nn.Module) -> None:
        """A root appeared: decide its engine, capture it where it is wanted, report it."""
        self.prepare()
        self._rank.operators.declared()
        self._choose_engine(root)
        self._rank.describe(root)

    def _choose_engine(self, root: Root) -> None:
        wish = self._rank.capture_of(root)
        if wish.engine == "eager":
            if self.compiles(root.module):
                root.why = _EAGER
            self._guard_eagerly(root)
            return
        if self.compiles(root.module):
            self._mark_compiled(root, "the script compiles it")
            return
        reason = _needs_graph(wish, self._rank.sync_of(root).by, self._ruled(root))
        if reason and root.path != "stock":
            for target in self._regions(root, wish.region):
                self._capture(target, self._captured(target, {}), root)
            self._mark_compiled(root, reason)
            root.made_compiled = True
        elif self._rank.mode == "plan":
            recorder = {"backend": self._backend.recorder(root)}
            self._capture(root.module, self._compiled_call(root.module, recorder), root)
        else:
            self._guard_eagerly(root)

    def _ruled(self, root: Root) -> str:
        """Which block of the plan needs a graph of a root; empty when none does."""
        asking = needing_graph(self._rank.plan, root.name)
        return f"`{asking[0].address}` needs a graph" if asking else ""

    def _guard_eagerly(self, root: Root) -> None:
        """A root that runs eagerly: its guards stop the run, or have nothing to say."""
        found = holding(self._rank.plan, root.name)
        if not found or any(map(needs_graph, found)):
            return  # said when the first step has ended
        module = root.module
        module._compiled_call_impl = _eager_without_grad(self._eager_call(module), module)

    def _regions(self, root: Root, region: str | None) -> list[nn.Module]:
        if region is None:
            return [root.module]
        found = [m for m in root.module.modules() if names_class(region, type(m))]
        if not found:
            self._rank.report(
                [_no_region(self._rank.capture_of(root).origin("region"), region, root)]
            )
        return found

    def _capture(self, module: nn.Module, call: Callable[..., Any], root: Root) -> None:
        """Compile a root or a part of one in place that the script does not compile."""
        eager_eval = self._rank.capture_of(root).eval == "as_written"
        chosen = _eager_without_grad(call, module) if eager_eval else call
        module._compiled_call_impl = self._called_of(root, chosen)

    def _called_of(self, root: Root, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that is one of the root, also where the script calls the module by itself."""

        def called(*args: Any, **kwargs: Any) -> Any:
            with self._rank.calls.of(root):
                return call(*args, **kwargs)

        return called

    def _captured(
        self, module: nn.Module, given: dict[str, Any], frame: str = ""
    ) -> Callable[..., Any]:
        """The call of a module under the plan: hooks included, it is one frame for Dynamo.

        What the plan wants is looked up at the first call, when it is known which root it is.

        Args:
            frame: as in `wrap_inline`.
        """
        settled: Callable[..., Any] | None = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal settled
            if settled is None:
                wish = self._rank.capture_for(module)
                if wish.engine == "eager":
                    settled = self._eager_call(module)
                else:
                    self._override(wish, given)
                    settled = self._compiled_call(module, given, frame)
            return settled(*args, **kwargs)

        return call

    def _compiled_call(
        self, module: nn.Module, given: dict[str, Any], frame: str = ""
    ) -> Callable[..., Any]:
        compiled = self._compile(torch_api.wrap_inline(module, frame), **given)
        return self._guarded(module, given, functools.partial(self._whole, module, compiled))

    def _eager_call(self, module: nn.Module) -> Callable[..., Any]:
        """A call that runs eagerly: its guards stop the run, or have nothing to say."""
        return self._guarded(module, {}, module._call_impl, compiled=False)

    def _guarded(
        self,
        module: nn.Module,
        given: dict[str, Any],
        plain: Callable[..., Any],
        *,
        compiled: bool = True,
    ) -> Callable[..., Any]:
        """A call under the guards of the plan; `plain` itself without any."""
        if not self._rank.guards.any:
            return plain

        def variant(frame: str, varying: Mapping[str, Sequence[bool] | None]) -> Callable[..., Any]:
            if not compiled:
                return plain
            call = torch_api.wrap_inline(module, frame)
            settings = dict(given)
            if varying:
                torch_api.varies(call, varying)
                # `dynamic=False` would close what the guard leaves open.
                settings["dynamic"] = settings.get("dynamic") or None
            return functools.partial(self._whole, module, self._compile(call, **settings))

        def tracer(look: Callable[[Any], Any]) -> Callable[..., Any]:
            frame = f"{type(module).__qualname__}_proof"

            def backend(gm: Any, inputs: Sequence[Any]) -> Any:
                found = look(gm)

                def stop(*_: Any) -> Any:
                    raise _Traced(found)

                return stop

            call = self._compile(
                torch_api.wrap_aliased(module, frame),
                backend=backend,
                fullgraph=True,
                dynamic=False,
            )

            def traced(*args: Any, **kwargs: Any) -> Any:
                try:
                    with torch_api.without_recompile_limit():
                        call(*args, **kwargs)
                except _Traced as stopped:
                    return stopped.args[0]

            return traced

        return Guarded(self._rank.guards, module, variant, tracer, plain)

    # --- calls -----------------------------------------------------------------------------------

    def _root_for(self, module: nn.Module) -> Root | None:
        """The root that a compiled module is, or is a part of.

        One that is called to train and belongs to none becomes a root.
        """
        known = self._rank.root_of(module) or self._owners.get(module)
        if known is not None:
            return known
        parameters = trainable(module)
        ids = {id(parameter) for _, parameter in parameters}
        owner = next(
            (r for r in self._rank.roots if any(id(p) in ids for _, p in r.parameters)), None
        )
        if owner is not None:
            self._owners[module] = owner
        if owner is not None or not parameters or not torch.is_grad_enabled():
            return owner
        if self._rank.leaves_alone(module, parameters):
            return None
        eager = self._rank.capture_for(module).engine == "eager"
        engine: Engine
        engine, why = ("eager", _EAGER) if eager else ("inductor", "the script compiles it")
        root = self._rank.make_root(module, parameters, "compiled", engine, "none", why)
        self._rank.add_root(root)
        self._rank.operators.declared()
        return root

    def _counted(
        self, call: Callable[..., Any], module: nn.Module, given: dict[str, Any]
    ) -> Callable[..., Any]:
        """The call of a module the script compiles, seen by the step watch.

        What is compiled for it before it is a root, to evaluate, may not be what the plan says of
        the root: then that call has a frame of its own, whose code Dynamo does not take for it.
        """
        without_root: Callable[..., Any] | None = None

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal without_root
            root = self._root_for(module)
            if root is None and not changes_any(self._rank.plan):
                return call(*args, **kwargs)
            if root is None:
                if without_root is None:
                    frame = f"{type(module).__qualname__}_without_root"
                    without_root = self._captured(module, dict(given), frame)
                return without_root(*args, **kwargs)
            counts = root.kind == "compiled" and root.owned.is_module(module)
            if counts:
                self._rank.called(root, args, kwargs)
            with self._rank.calls.of(root):
                output = call(*args, **kwargs)
            if counts:
                self._rank.returned(root, output)
            return output

        return counted

    def _whole(
        self, module: nn.Module, call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """A compiled call; under `graph = whole` a graph break is an error of the plan."""
        try:
            return call(*args, **kwargs)
        except torch_api.graph_break_error() as error:
            capture = self._rank.capture_for(module)
            if capture.graph == "whole":
                self._rank.report([_graph_break(capture, str(error))])
            raise


def _needs_graph(capture: Capture, by: str, ruled: str) -> str:
    """Which clause needs a graph of a script that does not compile; empty when none does.

    Args:
        ruled: that a rule of the plan does; empty without any.
    """
    if capture.engine == "as_written":
        return ""
    if clause := clause_needing(capture):
        return clause if capture.engine == "inductor" else f"{clause} needs a graph"
    return "`sync.by = in_graph` needs a graph" if by == "in_graph" else ruled


def _eager_without_grad(compiled: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """A script that does not compile evaluates as it always did."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return compiled(*args, **kwargs)
        return module._call_impl(*args, **kwargs)

    return call


def _graph_break(capture: Any, text: str) -> Diagnostic:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    span = capture.origin("graph")
    return Diagnostic(
        "SG0503",
        f"the graph breaks: {lines[0] if lines else 'no reason given'}",
        None if span is None else Label(span, "the whole graph is required here"),
        notes=(
            *(line for line in lines if line.startswith("Explanation:")),
            *control_flow.explained(text, lambda file: Path(file).read_text("utf-8")),
        ),
        help="change the script there, or write `graph = prefer`",
    )


def _no_region(span: Any, region: str, root: Root) -> Diagnostic:
    classes = sorted(
        {f"{type(m).__module__}:{type(m).__qualname__}" for m in root.module.modules()}
    )
    return Diagnostic(
        "SG0504",
        f"`{region}` is no class of a module in `{root.name}`",
        None if span is None else Label(span),
        notes=(f"its classes: {', '.join(plain_name(c) for c in classes[:12])}",),
        help="name one of its classes as `module:Class`",
    )
