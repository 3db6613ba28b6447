"""Compile one Dynamo graph under the plan: record its graphs, insert reductions, call Inductor.

Knows Inductor's entry points and caches; knows nothing of ranks, buckets or processes. The caller
says what to do with captured graphs through two callbacks, and the same graphs come back from a
side file when Inductor's cache already holds the compiled code.
"""

from __future__ import annotations

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
        graphs: recorded graphs in wire form, forward before backward; None on a cache hit whose
            side file is gone.
        written: the same before Inductor decomposed them, in plan mode.
        seconds: spent here.
        cache: `hit` when nothing was lowered again, else `miss`; `off` in capture only.
    """

    call: Callable[..., Any]
    graphs: list[Any] | None
    seconds: float
    cache: Literal["hit", "miss", "off"]
    written: list[Any] = field(default_factory=list[Any])


@dataclass(frozen=True, slots=True)
class GraphCompiler:
    """Compiles with Inductor, caches on, one compile per host.

    Attributes:
        record: turns an ATen graph into plain data (`capture.record`).
        reductions: `in_graph` puts `sgplan.ready` into backward graphs.
    """

    record: RecordGraph
    reductions: Reductions
    tag: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tag", f"sgplan|{OPS_VERSION}|{GROUP_BYTES}|{self.reductions}")

    def compile(
        self, gm: fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any], name: str | None
    ) -> Compiled:
        """Lower and compile `gm`.

        The tag goes into the AOT cache key, so that another kind of reductions never reuses this
        code, and out of the key of each ATen graph, which is keyed by content.
        """
        began = time.perf_counter()
        digest = dynamo_digest(gm, inputs, f"{self.tag}|{sorted(patches.items())}")
        side = SideFile(Path(torch_api.inductor_cache_dir()) / "sgplan", digest)
        graphs: list[Any] = []

        def inner(graph: fx.GraphModule, example: Sequence[Any], **kwargs: Any) -> Any:
            direction: Direction = "backward" if kwargs.get("is_backward") else "forward"
            graphs.append(self.record(graph, direction, inputs))
            with torch_api.compiler_config(cache_key_tag=""):
                if direction == "backward" and self.reductions == "in_graph":
                    insert_ready(graph, inputs)
                return torch_api.compile_fx_inner(graph, example, **kwargs)

        with (
            torch_api.functorch_config(force_non_lazy_backward_lowering=True),
            torch_api.compiler_config(cache_key_tag=self.tag),
            side.once(),
        ):
            call = torch_api.compile_fx(
                gm, inputs, inner_compile=inner, config_patches=patches, compile_region_name=name
            )
            if graphs:
                side.write(graphs)
        seconds = time.perf_counter() - began
        return Compiled(call, graphs or side.read(), seconds, "miss" if graphs else "hit")


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
