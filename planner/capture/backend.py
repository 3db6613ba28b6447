"""Compile one Dynamo graph under the plan: record its graphs, insert reductions, call Inductor.

Knows Inductor's entry points and caches; knows nothing of ranks, buckets or processes. The caller
says what to do with captured graphs through two callbacks, and the same graphs come back from a
side file when Inductor's cache already holds the compiled code.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

import torch
import torch.fx as fx

from sgplan.planner import torch_api
from sgplan.planner.capture.device_profile import measured
from sgplan.planner.capture.insert import GROUP_BYTES, OPS_VERSION, insert_ready
from sgplan.planner.capture.once import SideFile, dynamo_digest
from sgplan.planner.capture.recompute import NOTHING, Recomputing
from sgplan.planner.capture.rewrite import GraphPass, rewritten
from sgplan.planner.capture.saved import SAVED_VERSION, keep_saved
from sgplan.planner.capture.sites import DeviceProfile
from sgplan.planner.capture.steering import STEERING_VERSION, Schedule, Steering
from sgplan.planner.facts import GraphFact, Placed
from sgplan.planner.rules import Rule
from sgplan.planner.wire import decode, encode

Direction = Literal["forward", "backward"]
Reductions = Literal["in_graph", "none"]
RecordGraph = Callable[[fx.GraphModule, Direction, Sequence[Any]], GraphFact]


@dataclass(slots=True)
class Compiled:
    """The outcome of one compile.

    Attributes:
        call: what Dynamo shall call.
        graphs: recorded graphs, forward before backward.
        written: the same before Inductor decomposed them, in plan mode.
        seconds: spent here.
        cache: `hit` when the cache had every graph, `miss` when it had none, else `part`: the ranks
            of a host share the work; `off` in capture only.
        lowered: graphs that the cache did not have.
    """

    call: Callable[..., Any]
    graphs: list[GraphFact]
    seconds: float
    cache: Literal["hit", "part", "miss", "off"]
    lowered: int = 0
    written: list[GraphFact] = field(default_factory=list[GraphFact])


@dataclass(frozen=True, slots=True)
class Ruling:
    """The fusion rules for the graphs of one root.

    Attributes:
        rules: higher priority first.
        modules: module paths of the unwrapped model.
        profile: of the device, for `min_gain`.
    """

    rules: tuple[Rule, ...] = ()
    modules: tuple[str, ...] = ()
    profile: Callable[[], DeviceProfile] = field(default=lambda: measured("cpu"), compare=False)

    def steering(
        self,
        direction: Direction,
        placed: Sequence[Placed] = (),
        stop: Callable[[], None] | None = None,
    ) -> Steering:
        """The hooks for the compile of one ATen graph."""
        rules = [rule for rule in self.rules if rule.kernel is None]
        return Steering(rules, direction, self.modules, self.profile, placed, stop)


@dataclass(frozen=True, slots=True)
class GraphCompiler:
    """Compiles with Inductor, caches on, one compile per host.

    Attributes:
        record: turns an ATen graph into facts (`capture.record`).
        reductions: `in_graph` puts `sgplan.ready` into backward graphs.
        ruling: what the plan says of fusion.
        passes: what changes the Dynamo graph, in order.
        recomputing: what the backward computes again.
        context: what the record depends on beside the graph, such as names of parameters.
    """

    record: RecordGraph
    reductions: Reductions
    ruling: Ruling = Ruling()
    passes: tuple[GraphPass, ...] = ()
    recomputing: Recomputing = NOTHING
    context: str = ""

    def compile(
        self, gm: fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any], name: str | None
    ) -> Compiled:
        """Lower and compile `gm`.

        A digest of the graph, of the rules and of what the record depends on goes into every cache
        key, so that code is never reused for another kind of reductions or other rules, nor met
        without its record.
        """
        began = time.perf_counter()
        partition = self.recomputing.partition()
        patches = patches | partition.patches
        kind = (OPS_VERSION, GROUP_BYTES, STEERING_VERSION, self.reductions, self.ruling.rules)
        kind = (*kind, SAVED_VERSION, [each.key for each in self.passes])
        digest = dynamo_digest(gm, inputs, str((*kind, sorted(patches.items()), self.context)))
        side = SideFile(Path(torch_api.inductor_cache_dir()) / "sgplan", digest)
        changed = rewritten(gm, self.passes, self.ruling.modules)
        graphs: list[GraphFact] = []
        met = 0

        def inner(graph: fx.GraphModule, example: Sequence[Any], **kwargs: Any) -> Any:
            nonlocal met
            fact = partition.told(self.record(graph, _direction(kwargs), inputs))
            _finish(graph, fact, self.reductions, inputs)
            number = len(graphs)
            with side.turn(number) if torch_api.graph_cache_enabled() else contextlib.nullcontext():
                code, schedule, hit = self._lowered(
                    graph, example, kwargs, changed.placed, side, number
                )
            met += hit
            graphs.append(with_schedule(fact, schedule))
            return code

        def whole(**settings: Any) -> Callable[..., Any]:
            with torch_api.functorch_config(force_non_lazy_backward_lowering=True, **settings):
                return torch_api.compile_fx(
                    changed.gm,
                    [*inputs, *changed.inputs],
                    inner_compile=inner,
                    config_patches=patches,
                    compile_region_name=name,
                )

        with side.first() as first, torch_api.compiler_config(cache_key_tag=f"sgplan|{digest}"):
            if not first and _on_cpu(inputs):
                # Whoever loads code asks for it, and its answer is cached for the first rank, which
                # traces meanwhile: it will lower alone, and these have the time to trace then.
                torch_api.probe_cpu()
            call = whole()
            record = Record(tuple(graphs)) if graphs else _decoded(Record, side.read())
            if record is None:  # the code was cached by a process that died before it wrote
                call = whole(enable_autograd_cache=False)
                record = Record(tuple(graphs))
            if graphs:
                side.write(encode(record))
        lowered = len(graphs) - met
        cache = "hit" if not lowered else "part" if met else "miss"
        seconds = time.perf_counter() - began
        return Compiled(changed.called(call), list(record.graphs), seconds, cache, lowered)

    def _lowered(
        self,
        graph: fx.GraphModule,
        example: Sequence[Any],
        kwargs: dict[str, Any],
        placed: Sequence[Placed],
        side: SideFile,
        number: int,
    ) -> tuple[Any, Schedule, bool]:
        """Code of one ATen graph with its schedule, and whether the cache had it.

        A hit does not schedule again: what was seen lies in the side file of the graph, with the
        tag that the code is cached under, so that neither is ever met without the other.
        """
        known = _decoded(_Part, side.read(number))
        tag = uuid4().hex if known is None else known.tag
        steering = self.ruling.steering(_direction(kwargs), placed)
        hits = torch_api.graph_cache_hits()
        with torch_api.compiler_config(cache_key_tag=tag), torch_api.fusion_hooks(steering):
            code = torch_api.compile_fx_inner(graph, example, **kwargs)
        if steering.schedule is not None:
            side.write(encode(_Part(tag, steering.schedule)), number)
            return code, steering.schedule, False
        # A graph that runs nothing has no schedule.
        schedule = Schedule() if known is None else known.schedule
        return code, schedule, torch_api.graph_cache_hits() > hits


def _on_cpu(inputs: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in inputs)


@dataclass(frozen=True, slots=True)
class _Part:
    """What the side file of one ATen graph holds."""

    tag: str
    schedule: Schedule


_T = TypeVar("_T")


def _decoded(kind: type[_T], wire: Any) -> _T | None:
    """None for what is not there or of another version."""
    try:
        return None if wire is None else decode(kind, wire)
    except ValueError:
        return None


def _finish(
    graph: fx.GraphModule, fact: GraphFact, reductions: Reductions, inputs: Sequence[Any]
) -> None:
    """What is changed in a graph after it was recorded, just before it is lowered."""
    if fact.direction == "forward":
        keep_saved(graph)
    elif reductions == "in_graph":
        insert_ready(graph, inputs)


def _direction(kwargs: Mapping[str, Any]) -> Direction:
    """Of the graph that Inductor's compile function is called with these for."""
    return "backward" if kwargs.get("is_backward") else "forward"


@dataclass(frozen=True, slots=True)
class Record:
    """What the side file of one compile holds."""

    graphs: tuple[GraphFact, ...]


def with_schedule(fact: GraphFact, schedule: Schedule) -> GraphFact:
    """The facts of a graph, with what the compiler made of it."""
    return replace(fact, kernels=schedule.kernels, sites=schedule.sites, near=schedule.near)


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


def as_eager_runs(
    gm: fx.GraphModule, inputs: Sequence[Any], record: RecordGraph
) -> list[GraphFact]:
    """The recorded forward and backward of a Dynamo graph in the ops that eager dispatches."""
    graphs: list[GraphFact] = []

    def keep(direction: Direction) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compiler(graph: fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
            graphs.append(record(graph, direction, inputs))
            return graph.forward

        return compiler

    torch_api.capture_only(gm, inputs, keep("forward"), keep("backward"))
    return graphs


class _Scheduled(Exception):
    """The schedule is known; nothing further is wanted of this compile."""


@dataclass(frozen=True, slots=True)
class InductorRecorder:
    """Records the graphs that Inductor would compile, for plan mode, and how it would fuse them.

    Attributes: as those of `GraphCompiler`.
    """

    record: RecordGraph
    reductions: Reductions = "none"
    ruling: Ruling = Ruling()
    passes: tuple[GraphPass, ...] = ()
    recomputing: Recomputing = NOTHING

    def compile(
        self, gm: fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any], name: str | None
    ) -> Compiled:
        """Trace and schedule as `GraphCompiler` does, make no code, run plain Python."""
        began = time.perf_counter()
        written = as_eager_runs(gm, inputs, self.record)
        changed = rewritten(gm, self.passes, self.ruling.modules)
        partition = self.recomputing.partition()
        graphs: list[GraphFact] = []

        def inner(graph: fx.GraphModule, example: Sequence[Any], **kwargs: Any) -> Any:
            fact = partition.told(self.record(graph, _direction(kwargs), inputs))
            _finish(graph, fact, self.reductions, inputs)
            schedule = self._schedule(graph, example, kwargs, changed.placed)
            graphs.append(with_schedule(fact, schedule))
            return _never_called()

        with torch_api.functorch_config(
            force_non_lazy_backward_lowering=True, enable_autograd_cache=False
        ):
            torch_api.compile_fx(
                changed.gm,
                [*inputs, *changed.inputs],
                inner_compile=inner,
                config_patches=patches | partition.patches,
                compile_region_name=name,
            )
        return Compiled(gm.forward, graphs, time.perf_counter() - began, "off", written=written)

    def _schedule(
        self,
        graph: fx.GraphModule,
        example: Sequence[Any],
        kwargs: dict[str, Any],
        placed: Sequence[Placed],
    ) -> Schedule:
        def stop() -> None:
            raise _Scheduled

        steering = self.ruling.steering(_direction(kwargs), placed, stop)
        try:
            with (
                torch_api.inductor_config(fx_graph_cache=False),
                torch_api.fusion_hooks(steering),
            ):
                torch_api.compile_fx_inner(graph, example, **kwargs)
        except Exception:
            # Inductor wraps what is raised inside; a real error comes before the schedule is known.
            if steering.schedule is None:
                raise
        return steering.schedule or Schedule()


def _never_called() -> Callable[..., Any]:
    def call(arguments: list[Any]) -> Any:
        raise AssertionError("a recorded graph is not meant to run")

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call
