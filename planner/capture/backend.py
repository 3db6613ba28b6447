"""Compile one Dynamo graph under the plan: record its graphs, insert reductions, call Inductor.

Knows Inductor's entry points and caches; knows nothing of ranks, buckets or processes. The caller
says what to do with captured graphs through two callbacks, and the same graphs come back from a
side file when Inductor's cache already holds the compiled code.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch.fx as fx

from sgplan.planner import torch_api
from sgplan.planner.capture.insert import GROUP_BYTES, OPS_VERSION, insert_ready
from sgplan.planner.capture.once import SideFile, dynamo_digest

Direction = Literal["forward", "backward"]
Reductions = Literal["in_graph", "none"]
RecordGraph = Callable[[fx.GraphModule, Direction, Sequence[Any]], Any]


@dataclass(slots=True)
class Compiled:
    """The outcome of one compile.

    Attributes:
        call: what Dynamo shall call.
        graphs: recorded graphs in wire form, forward before backward.
        written: the same before Inductor decomposed them, in plan mode.
        seconds: spent here.
        cache: `hit` when nothing was lowered again, else `miss`; `off` in capture only.
    """

    call: Callable[..., Any]
    graphs: list[Any]
    seconds: float
    cache: Literal["hit", "miss", "off"]
    written: list[Any] = field(default_factory=list[Any])


@dataclass(frozen=True, slots=True)
class GraphCompiler:
    """Compiles with Inductor, caches on, one compile per host.

    Attributes:
        record: turns an ATen graph into plain data (`capture.record`).
        reductions: `in_graph` puts `sgplan.ready` into backward graphs.
        context: what the record depends on beside the graph, such as names of parameters.
    """

    record: RecordGraph
    reductions: Reductions
    context: str = ""

    def compile(
        self, gm: fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any], name: str | None
    ) -> Compiled:
        """Lower and compile `gm`.

        A digest of the graph and of what its record depends on goes into the AOT cache key, so that
        code is never reused for another kind of reductions nor met without its record; it is taken
        out of the key of each ATen graph, which is keyed by content.
        """
        began = time.perf_counter()
        kind = (OPS_VERSION, GROUP_BYTES, self.reductions, sorted(patches.items()), self.context)
        digest = dynamo_digest(gm, inputs, str(kind))
        side = SideFile(Path(torch_api.inductor_cache_dir()) / "sgplan", digest)
        graphs: list[Any] = []
        met = 0

        def inner(graph: fx.GraphModule, example: Sequence[Any], **kwargs: Any) -> Any:
            nonlocal met
            direction: Direction = "backward" if kwargs.get("is_backward") else "forward"
            graphs.append(self.record(graph, direction, inputs))
            if direction == "backward" and self.reductions == "in_graph":
                insert_ready(graph, inputs)
            cached = torch_api.graph_cache_enabled()
            alone = side.turn(len(graphs)) if cached else contextlib.nullcontext()
            with torch_api.compiler_config(cache_key_tag=""), alone:
                hits = torch_api.graph_cache_hits()
                compiled = torch_api.compile_fx_inner(graph, example, **kwargs)
                met += torch_api.graph_cache_hits() - hits
                return compiled

        def whole(**settings: Any) -> Callable[..., Any]:
            with torch_api.functorch_config(force_non_lazy_backward_lowering=True, **settings):
                return torch_api.compile_fx(
                    gm,
                    inputs,
                    inner_compile=inner,
                    config_patches=patches,
                    compile_region_name=name,
                )

        with torch_api.compiler_config(cache_key_tag=f"sgplan|{digest}"):
            call = whole()
            recorded = graphs or side.read()
            if recorded is None:  # the code was cached by a process that died before it wrote
                call = whole(enable_autograd_cache=False)
                recorded = graphs
            if graphs:
                side.write(graphs)
        cache = "hit" if met == len(graphs) else "miss"
        return Compiled(call, recorded, time.perf_counter() - began, cache)


@dataclass(frozen=True, slots=True)
class GraphRecorder:
    """Records the graphs that eager runs, for plan mode; the script's Python goes on running."""

    record: RecordGraph

    def compile(
        self, gm: fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any], name: str | None
    ) -> Compiled:
        """Trace forward and backward without running or compiling them."""
        began = time.perf_counter()
        graphs = as_eager_runs(gm, inputs, self.record)
        return Compiled(gm.forward, graphs, time.perf_counter() - began, "off")


def as_eager_runs(gm: fx.GraphModule, inputs: Sequence[Any], record: RecordGraph) -> list[Any]:
    """The recorded forward and backward of a Dynamo graph in the ops that eager dispatches."""
    graphs: list[Any] = []

    def keep(direction: Direction) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compiler(graph: fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
            graphs.append(record(graph, direction, inputs))
            return graph.forward

        return compiler

    torch_api.capture_only(gm, inputs, keep("forward"), keep("backward"))
    return graphs


@dataclass(frozen=True, slots=True)
class InductorRecorder:
    """Records the graphs that Inductor would compile, for plan mode; lowers nothing further."""

    record: RecordGraph

    def compile(
        self, gm: fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any], name: str | None
    ) -> Compiled:
        """Trace as `GraphCompiler` does, stop before code generation, go on in plain Python."""
        began = time.perf_counter()
        written = as_eager_runs(gm, inputs, self.record)
        graphs: list[Any] = []

        def inner(graph: fx.GraphModule, example: Sequence[Any], **kwargs: Any) -> Any:
            direction: Direction = "backward" if kwargs.get("is_backward") else "forward"
            graphs.append(self.record(graph, direction, inputs))
            return _never_called()

        with torch_api.functorch_config(
            force_non_lazy_backward_lowering=True, enable_autograd_cache=False
        ):
            torch_api.compile_fx(
                gm, inputs, inner_compile=inner, config_patches=patches, compile_region_name=name
            )
        return Compiled(gm.forward, graphs, time.perf_counter() - began, "off", written)


def _never_called() -> Callable[..., Any]:
    def call(arguments: list[Any]) -> Any:
        raise AssertionError("a recorded graph is not meant to run")

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call
