"""What Dynamo's graphs go through under a plan: found their root, recorded, compiled, reported.

Knows the rank's roots and reports; how a graph is compiled is `planner/capture`, and what is
compiled at all is decided in `compiling.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.fx as fx
from torch import nn

from sgplan.grammar.diagnostics import Refused
from sgplan.interpreter import events, gate
from sgplan.interpreter.rank import Rank
from sgplan.interpreter.roots import Root, plain_name
from sgplan.planner import torch_api
from sgplan.planner.capture.backend import (
    Compiled,
    GraphCompiler,
    GraphRecorder,
    InductorRecorder,
    Reductions,
    Ruling,
)
from sgplan.planner.capture.casts import LOW, CastPrecision, autocasts
from sgplan.planner.capture.device_profile import device_profile, matmul_seconds
from sgplan.planner.capture.insert import grouped, parameter_gradients
from sgplan.planner.capture.provenance import input_names, memory_names, output_names
from sgplan.planner.capture.recompute import Recomputing
from sgplan.planner.capture.record import ValueNames
from sgplan.planner.capture.rewrite import GraphPass
from sgplan.planner.capture.sites import DeviceProfile
from sgplan.planner.facts import GraphFact
from sgplan.planner.kernels.check import objection
from sgplan.planner.kernels.source import Kernel, KernelFault, located
from sgplan.planner.kernels.substitute import Substitution
from sgplan.planner.precision import Settings, Stages, clashing, stages_of
from sgplan.planner.rules import Rule, no_kernel, rejected

Record = Callable[..., GraphFact]

# Less is noise of a measurement.
_SLOWER = 1.2


class GraphBackend:
    """Compiles or records graphs for one rank.

    Args:
        rank: reports, knows roots and plan.
        record: `capture.record.record_graph`.
    """

    def __init__(self, rank: Rank, record: Record) -> None:
        self._rank = rank
        self._record = record
        self._folder = Path(rank.plan.source).absolute().parent  # before the script changes its own

    def compile(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        patches: dict[str, Any],
        name: str | None,
        stock: Callable[[], Any],
    ) -> Any:
        """Compile one Dynamo graph: as the plan says of its root, or as the script wrote it."""
        owner = self._owner(inputs) or self._rank.calls.root
        plain = self._rank.verifying is not None and not self._rank.verifying.compiles(gm)
        by_ddp = torch_api.active_ddp() is not None or (owner is not None and owner.path == "stock")
        if plain or by_ddp:
            return stock()
        # Graphs beside the calls of roots, as of an optimizer's step, take parameters too.
        root = None if self._rank.calls.root is None else owner
        self._rank.operators.probe(gm, inputs)
        self._rank.guards.graph(gm, inputs)
        in_graph = root is None or self._rank.sync_of(root).by in ("auto", "in_graph")
        record, context = self._recording(root, gm, inputs)
        reductions: Reductions = "in_graph" if in_graph else "none"
        again = self._recomputing(root)
        ruling, settled = self._ruling(root), self._settled(root, patches)
        stages = Stages(()) if root is None else stages_of(self._rank.plan, root.name)
        variants: dict[Settings, Callable[..., Any]] = {}
        seconds = 0.0
        for place, stage in enumerate(stages.distinct()):
            passes = self._passes(root, stage, gm)
            if self._rank.verifying is not None:
                passes = self._rank.verifying.probed(passes, inputs, _modules(root))
            if self._rank.mode == "plan":
                compiler: Any = InductorRecorder(record, reductions, ruling, passes, again)
            else:
                gate.asked = gate.asked or in_graph
                compiler = GraphCompiler(record, reductions, ruling, passes, again, context)
            outcome = self._run(compiler, root, gm, inputs, settled, name, place)
            variants[stage] = outcome.call
            seconds += outcome.seconds
        # Dynamo compiled once, whatever the number of stages.
        self._rank.guards.compiled(seconds, self._region(root)[1])
        return self._rank.guards.cutting.watched(self._by_stage(stages, variants))

    def _by_stage(
        self, stages: Stages, variants: dict[Settings, Callable[..., Any]]
    ) -> Callable[..., Any]:
        """Calls the variant of the stage that the step is in; a switch compiles nothing."""
        if len(variants) == 1:
            return next(iter(variants.values()))
        rank = self._rank

        def call(*given: Any) -> Any:
            return variants[stages.at(rank.steps.step + rank.stage_offset)](*given)

        return call

    def _settled(self, root: Root | None, patches: dict[str, Any]) -> dict[str, Any]:
        """The script's Inductor settings with those of the plan over them; a change is printed."""
        rank = self._rank
        wanted = rank.planner.settings(rank.capture_of(root), rank.device)
        if rank.mode == "verify":
            wanted = {**wanted, "fallback_random": True}
        for name, value in wanted.items():
            if patches.get(name, value) != value:
                given = str(patches[name])
                rank.once(events.SettingOverridden, f"options[{name}]", given, str(value))
        return {**patches, **wanted}

    def _ruling(self, root: Root | None) -> Ruling:
        return Ruling(self._rules(root), _modules(root), self._profile)

    def _recomputing(self, root: Root | None) -> Recomputing:
        if root is None:
            return Recomputing()
        return Recomputing(
            self._rank.planner.recomputes(self._rank.plan, root.name), _modules(root)
        )

    def _rules(self, root: Root | None) -> tuple[Rule, ...]:
        return () if root is None else self._rank.planner.rules(self._rank.plan, root.name)

    def _profile(self) -> DeviceProfile:
        return device_profile(self._rank.device, _own_cache())

    def _passes(
        self, root: Root | None, stage: Settings, gm: fx.GraphModule
    ) -> tuple[GraphPass, ...]:
        """What the plan changes in a graph of a root, in order."""
        passes: list[GraphPass] = []
        if stage:
            self._note_slower(stage)
            passes.append(
                CastPrecision(
                    stage,
                    _modules(root),
                    self._note_precision,
                    lambda clash: self._rank.report([clashing(self._rank.plan, clash)]),
                )
            )
        rules = self._rules(root)
        if kernels := self._kernels(rules):
            passes.append(
                Substitution(
                    rules,
                    _modules(root),
                    kernels,
                    lambda case: objection(case, _own_cache()),
                    self._profile,
                    lambda placed: self._rank.report(rejected(self._rank.plan, placed)),
                )
            )
        if (scaling := self._scaling(root, gm)) is not None:
            passes.append(scaling)
        return tuple(passes)

    def _scaling(self, root: Root | None, gm: fx.GraphModule) -> GraphPass | None:
        found = self._rank.loss_scales.scaling(root)
        if found is None or not autocasts(gm):
            return found
        why = "the script uses autocast: the loss scale is left to the script"
        self._rank.once(events.NoteAdded, "loss scale", why)
        return None

    def _note_slower(self, stage: Settings) -> None:
        """In plan mode: a lower format that this machine multiplies more slowly than float32."""
        if self._rank.mode != "plan":
            return
        for compute in sorted({setting.compute for setting in stage} & set(LOW)):
            device, folder = self._rank.device, _own_cache()
            name = str(LOW[compute]).removeprefix("torch.")
            low, wide = (matmul_seconds(device, dtype, folder) for dtype in (name, "float32"))
            if low > _SLOWER * wide:
                self._note_precision(
                    f"a matrix product in {compute} takes {low / wide:.1f} times as long as in "
                    f"float32 on this machine ({device})"
                )

    def _note_precision(self, text: str) -> None:
        self._rank.once(events.NoteAdded, "precision", text)

    def _kernels(self, rules: Sequence[Rule]) -> dict[str, Kernel]:
        """The kernels of rules; one that is not there ends the rank."""
        found: dict[str, Kernel] = {}
        for rule in rules:
            if rule.kernel is None:
                continue
            try:
                found[rule.address] = located(rule.kernel, self._folder)
            except KernelFault as fault:
                block = next(b for b in self._rank.plan.fuses if b.address == rule.address)
                self._rank.report([no_kernel(block, str(fault))])
        return found

    def recorder(self, root: Root) -> Callable[..., Any]:
        """A backend that records a root's graphs as eager runs them, for plan mode."""

        def record_only(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            record, _ = self._recording(root, gm, inputs)
            outcome = self._run(GraphRecorder(record), root, gm, inputs, {}, None)
            self._rank.guards.compiled(outcome.seconds, self._region(root)[1])
            return self._rank.guards.cutting.watched(outcome.call)

        return record_only

    def _run(
        self,
        compiler: Any,
        root: Root | None,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        patches: dict[str, Any],
        name: str | None,
        stage: int = 0,
    ) -> Compiled:
        rank = self._rank
        region, why = self._region(root)
        rank.emit(events.CompileStarted, region)
        rank.capturing = True
        before = torch_api.compile_phases()
        try:
            outcome: Compiled = compiler.compile(gm, inputs, patches, name)
        except Exception as error:
            # What a pass inside of Inductor raises comes wrapped.
            if (refused := _refusal(error)) is not None:
                rank.report(refused.diagnostics)
            raise
        finally:
            rank.capturing = False
        fields = (region, outcome.seconds, outcome.cache, outcome.lowered, why)
        rank.emit(events.CompileFinished, *fields)
        spent = {
            phase: seconds - before.get(phase, 0.0)
            for phase, seconds in torch_api.compile_phases().items()
            if seconds > before.get(phase, 0.0)
        }
        rank.emit(events.CompilePhases, region, spent)
        if root is not None:
            self._keep(root, region, outcome, stage)
        return outcome

    def _keep(self, root: Root, region: str, outcome: Compiled, stage: int) -> None:
        root.captures += 1
        root.written += outcome.written
        for recorded in outcome.graphs:
            # A cached record does not know where the script has the region today.
            fact = replace(recorded, region=region, stage=stage)
            if any((fact.digest, stage) == (known.digest, known.stage) for known in root.graphs):
                continue
            root.graphs.append(fact)
            self._rank.emit(
                events.GraphCaptured,
                root.name,
                fact.direction,
                fact.digest,
                fact.region,
                len(fact.ops),
            )
        program = self._rank.lower()
        self._rank.report_rules()
        if any(graph.direction == "backward" for graph in root.graphs):
            self._rank.report(
                self._rank.planner.overlap(self._rank.plan, self._rank.facts(), program)
            )

    def _recording(
        self, root: Root | None, gm: fx.GraphModule, inputs: Sequence[Any]
    ) -> tuple[Callable[..., Any], str]:
        """What records a graph of a root, and all that the record depends on beside the graph."""
        region, _ = self._region(root)
        in_graph = root is not None and root.path == "in_graph"
        parameters = self._input_names(root, inputs)
        modules = _modules(root)
        signature = [] if root is None else list(inspect.signature(root.module.forward).parameters)
        memory = memory_names(gm, modules, signature)
        names = ValueNames(input_names(gm, inputs, signature), output_names(gm), memory)

        def record(graph: fx.GraphModule, direction: Any, example: Sequence[Any]) -> Any:
            gradients: list[str | None] = []
            groups: list[list[int]] = []
            if direction == "backward":
                gradients = [
                    None if place is None else parameters[place]
                    for place in torch_api.gradient_inputs(graph)
                ]
                if in_graph:
                    found = grouped(parameter_gradients(graph, inputs))
                    groups = [[gradient.output for gradient in group] for group in found]
            return self._record(
                graph,
                direction,
                region,
                gradients=gradients,
                groups=groups,
                names=names,
                modules=modules,
            )

        return record, str((in_graph, parameters, names, modules))

    def _input_names(self, root: Root | None, inputs: Sequence[Any]) -> list[str | None]:
        known = {} if root is None else {id(p): name for name, p in root.parameters}
        return [known.get(id(value)) for value in inputs]

    def _owner(self, inputs: Sequence[Any]) -> Root | None:
        """The root whose parameters a graph takes."""
        ids = {id(value) for value in inputs if isinstance(value, nn.Parameter)}
        for root in self._rank.roots:
            if any(id(p) in ids for _, p in root.parameters):
                return root
        return None

    def _region(self, root: Root | None) -> tuple[str, str]:
        """Name of the frame that is compiled, and why again."""
        found = torch_api.compiling_frame()
        cls = "" if root is None else type(root.module).__qualname__
        if found is None:
            return f"{cls}.forward", ""
        code, why = found
        wrapped = torch_api.is_captured_call(code)
        region = f"{cls}.forward" if wrapped else f"{code.co_qualname}:{code.co_firstlineno}"
        return region, why.strip()


def _refusal(error: BaseException | None) -> Refused | None:
    """The refusal of the planner behind an error, if there is one."""
    while error is not None and not isinstance(error, Refused):
        error = error.__cause__ or error.__context__
    return error


def _own_cache() -> Path:
    """Where what is worked out once for each machine lies."""
    return Path(torch_api.inductor_cache_dir()) / "sgplan"


def _modules(root: Root | None) -> tuple[str, ...]:
    return () if root is None else tuple(plain_name(n) for n, _ in root.module.named_modules())


def planned_wrapper(backend: GraphBackend) -> type:
    """A subclass of torch's Inductor backend, so that Dynamo compares and resets it as usual."""

    class PlannedInductor(torch_api.inductor_wrapper()):
        compiler_name = "sgplan"

        def __call__(
            self, model_: fx.GraphModule, inputs_: Sequence[Any], *, config_patches: Any = None
        ) -> Any:
            stock = functools.partial(
                super().__call__, model_, inputs_, config_patches=config_patches
            )
            patches = {**self.config, **(config_patches or {})}
            return backend.compile(model_, inputs_, patches, getattr(self, "name", None), stock)

    return PlannedInductor
