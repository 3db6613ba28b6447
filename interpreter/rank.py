"""One rank under a plan: its roots, its program, and what they report.

The patches call in here; nothing here patches. Owns the list of roots, the facts and the program
made of them, the recorder, and the way out when the run is refused. Lowering comes from outside as
plain functions, so that this folder does not import the planner's passes.
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sgplan.grammar.diagnostics import Diagnostic, Refused, has_errors
from sgplan.grammar.plan import Capture, Plan, Sync
from sgplan.interpreter import events, gate, shortfalls, step_end, tracked_places, unsupported
from sgplan.interpreter.calls import Calls
from sgplan.interpreter.exits import Exits
from sgplan.interpreter.guards import Guards
from sgplan.interpreter.inner_step import InnerSteps
from sgplan.interpreter.loss_scale import LossScales
from sgplan.interpreter.lowering import Planner
from sgplan.interpreter.masters import Masters
from sgplan.interpreter.misses import Misses
from sgplan.interpreter.operators import Operators
from sgplan.interpreter.optimizers import Optimizers
from sgplan.interpreter.peers import Peers
from sgplan.interpreter.precision_watch import PrecisionWatch
from sgplan.interpreter.record import Recorder
from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.roots import Owned, Root, RootKind, RootNames, first_tensor
from sgplan.interpreter.steps import StepWatch
from sgplan.interpreter.track import NoTrack, Track, Tracked
from sgplan.planner import torch_api
from sgplan.planner.facts import Engine, Facts
from sgplan.planner.facts import Path as ReductionPath
from sgplan.planner.program import Program

if TYPE_CHECKING:
    from sgplan.interpreter.verifying import Verifying

Mode = Literal["apply", "plan", "verify"]
_ALONE = nullcontext()  # made once: with cold caches it costs more than what is around it
_NOTABLE = 0.01  # of memory: a smaller change is not reported


class Rank:
    """The state of one process under a plan.

    Attributes:
        plan, mode, rank, world, device: what it was started with.
        folder: the run folder.
        roots: in the order in which they were found.
        compiled: modules that the script compiles, roots or not.
        calls: of which root the script is in.
        steps: the step watch.
        peers: what is said to the other ranks and heard of them.
        optimizers: what became of the script's.
        inner_steps: what stands around their inner steps.
        operators: the custom ones that the plan admits.
        verifying: records this rank in verify mode, else None.
        stage_offset: added to the number of steps where a precision stage is looked up.
        loss_scales, masters: what the plan's `precision` asks beside casts.
        precision: reports stages and scales as they change.
        guards: what holds for captured calls, and what is said of misses.
    """

    __slots__ = (
        "__weakref__",
        "_backward_place",
        "_changed",
        "_depth",
        "_ended",
        "_expect",
        "_judged",
        "_leading",
        "_open_recorder",
        "_pid",
        "_recorder",
        "_reducers",
        "_resident",
        "_said",
        "_track",
        "calls",
        "capturing",
        "compiled",
        "device",
        "folder",
        "guards",
        "inner_steps",
        "loss_scales",
        "masters",
        "misses",
        "mode",
        "names",
        "on_idle",
        "operators",
        "optimizers",
        "peers",
        "plan",
        "planner",
        "precision",
        "program",
        "rank",
        "roots",
        "stage_offset",
        "steps",
        "verifying",
        "world",
    )

    def __init__(
        self,
        plan: Plan,
        mode: Mode,
        folder: Path,
        rank: int,
        recorder: Callable[[], Recorder],
        planner: Planner,
        expect: Any,
    ) -> None:
        self.plan = plan
        self.mode: Mode = mode
        self.folder = folder
        self.rank = rank
        self.world = plan.world
        self.device = plan.device
        self.planner = planner
        self.roots: list[Root] = []
        self.compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.calls = Calls()
        self.names = RootNames(plan.models)
        self.steps = StepWatch(self.emit, self._step_ended)
        self.peers = Peers(self)
        self.optimizers = Optimizers(self)
        self.operators = Operators(self)
        self.inner_steps = InnerSteps()
        self.loss_scales = LossScales(self)
        self.precision = PrecisionWatch(plan, self.emit, self.loss_scales.now)
        self.masters = Masters(self)
        self.guards = Guards(self)
        self.misses = Misses(lambda miss: shortfalls.missed(self, miss))
        self._expect = expect
        self._open_recorder = recorder
        self._recorder: Recorder | None = None
        self._track: Track | None = None
        self._reducers: dict[str, Reducer] = {}
        self._said: set[tuple[str, ...]] = set()
        self._depth = 0
        self._backward_place = 0
        self._leading: Root | None = None  # the root with most parameter elements
        self._changed = False
        self._ended = False
        self._judged = False
        self._pid = os.getpid()
        self.verifying: Verifying | None = None
        self.stage_offset = 0
        self.capturing = False  # Dynamo or Inductor is at work
        self.program: Program | None = None
        self.on_idle = self._idle  # changed, if at all, before the recorder opens
        self._resident = 0

    # --- reporting -------------------------------------------------------------------------------

    @property
    def recorder(self) -> Recorder:
        """Opened at the first event, so that a process that never trains leaves no file."""
        if self._recorder is None:
            self._recorder = self._open_recorder()
            self._recorder.on_idle = self.on_idle
        return self._recorder

    @property
    def track(self) -> Track:
        """Told at every instruction; a rank that only plans or verifies has nothing to show."""
        if self._track is None:
            self._track = self._tracked() if self.mode == "apply" else NoTrack()
        return self._track

    def _tracked(self) -> Track:
        path = self.folder / f"counter-{self.rank}.bin"
        try:
            return Tracked(path, self.emit)
        except OSError as error:
            why = f"the dashboard cannot show where this rank is: {error.strerror or error}"
            self.emit(events.NoteAdded, path.name, why)
            return NoTrack()

    def _idle(self) -> None:
        """Once a second, from the recording thread."""
        self.peers.publish_progress()
        if self._track is not None:
            self._track.publish()
        resident = resident_bytes()
        device = torch.cuda.memory_allocated() if self.device == "cuda" else 0
        if abs(resident + device - self._resident) > _NOTABLE * self._resident:
            self._resident = resident + device
            self.emit(events.MemoryMeasured, resident, peak_rss(), device)

    def open(self) -> None:
        """Report this rank now, before anything is found in it."""
        _ = self.recorder

    def emit(self, event: type, *fields: Any) -> None:
        (self._recorder or self.recorder).emit(event, *fields)

    def once(self, event: type, *fields: Any) -> None:
        """Emit an event the first time it is said in this rank."""
        if self._is_new(event.__name__, *map(str, fields)):
            self.emit(event, *fields)

    def _is_new(self, *key: str) -> bool:
        known = key in self._said
        self._said.add(key)
        return not known

    def report(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Hand diagnostics to the parent; an error ends this rank."""
        found = list(diagnostics)
        for diagnostic in found:
            self.emit(events.DiagnosticRaised, diagnostic.to_wire())
        if has_errors(found):
            first = next(d for d in found if d.severity == "error")
            # Status 1 makes the launcher end the other ranks; planning ranks end by themselves, and
            # the launcher need not cry over it: the parent's own status says that it was refused.
            self.leave("refused", f"{first.code}: {first.message}", 0 if self.mode == "plan" else 1)

    def report_rules(self) -> None:
        """Say, once each, where the compiler did not follow a fusion rule."""
        found = self.planner.missed(self.plan, self.facts())
        self.report([d for d in found if self._is_new("rule", d.message)])

    def leave(self, how: str, detail: str, status: int) -> NoReturn:
        """End the process now: everything written, nothing of the script run any more."""
        self.end(how, detail)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        os._exit(status)

    def end(self, how: str, detail: str = "") -> None:
        """The last event; what comes later is not recorded."""
        if self._ended or os.getpid() != self._pid or (self._recorder is None and not self.roots):
            return
        self._ended = True
        self.steps.on_end = None  # whoever would leave at the end of a step is leaving
        self.steps.script_ends()
        shortfalls.uncaptured(self)
        if not self._judged and self.steps.step:
            found = self.planner.miscounted(self.plan, self.facts())
            self.report(replace(problem, severity="warning") for problem in found)
        if how == "returned" and self.steps.step:
            unasked = self.guards.unasked(ended=True)
            self.report(replace(problem, severity="warning") for problem in unasked)
        self.peers.publish_end()
        self.write_part()
        if self._track is not None:
            self._track.publish()
        self.emit(events.ScriptEnded, how, detail, self.steps.step, peak_rss())
        self.recorder.close()

    def watch_updates(self) -> None:
        """Tell the track of every optimizer's step."""
        places: dict[int, int] = {}  # by id; names change when one more is built

        def place(optimizer: Optimizer) -> int:
            found = places.get(id(optimizer))
            if found is None:
                name = tracked_places.update(self.optimizers.name(optimizer))
                found = places[id(optimizer)] = self.track.place(name)
            return found

        def entered(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            began = perf_counter()
            self.track.enter(place(optimizer))
            self.steps.own += perf_counter() - began

        def left(optimizer: Optimizer, ends: bool) -> None:
            if ends and not self.track.full:
                return  # the end of the step is the end of all places in it
            began = perf_counter()
            self.track.leave(place(optimizer))
            self.steps.own += perf_counter() - began

        self.steps.on_built.append(lambda optimizer: places.clear())
        register_optimizer_step_pre_hook(entered)
        self.steps.on_update = left

    def watch_exit(self) -> None:
        """See to it that the last event is written however the script ends."""
        exits = Exits()
        exits.install()
        previous = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            previous(kind, error, trace)
            self.end("raised", "".join(traceback.format_exception_only(kind, error)).strip())

        sys.excepthook = hook
        atexit.register(lambda: self.end("exited" if exits.words() else "returned", exits.words()))

    # --- roots and program -----------------------------------------------------------------------

    def capture_of(self, root: Root | None) -> Capture:
        return self.plan.capture_of(None if root is None else root.name)

    def capture_for(self, module: nn.Module) -> Capture:
        """What the plan says of a module, whether it is a root, a part of one, or none yet."""
        return self.plan.capture_of(self.name_of(module))

    def name_of(self, module: nn.Module) -> str | None:
        """Name of the root that a module is or is part of.

        Of a module that has not trained yet the label of the `model` block that means it, else
        None.
        """
        root = self.root_of(module)
        if root is None:
            root = next((root for root in self.roots if root.owned.holds(module)), None)
        return self.names.expected(module) if root is None else root.name

    def sync_of(self, root: Root) -> Sync:
        return self.plan.sync_of(root.name)

    def make_root(
        self,
        module: nn.Module,
        parameters: list[tuple[str, nn.Parameter]],
        kind: RootKind,
        engine: Engine,
        path: ReductionPath,
        why: str,
    ) -> Root:
        """A root with its name, its parameters in the format that the plan stores them in."""
        name = self.names.name(module)
        self.masters.store(name, module)
        return Root(name, Owned(module, parameters), kind, engine, path, why)

    def add_root(self, root: Root) -> None:
        """A root was found: report it and lower again."""
        root.place = self.track.place(tracked_places.forward(root.name))
        self._backward_place = self.track.place(tracked_places.backward())
        self.roots.append(root)
        self._leading = max(self.roots, key=lambda root: root.numel)
        self.emit(
            events.RootFound,
            root.name,
            root.fact().cls,
            root.kind,
            len(root.parameters),
            root.numel,
        )
        self.optimizers.root_found(root)
        self.lower()

    def describe(self, root: Root) -> None:
        """Report engine and path of a root, each time they change."""
        self.once(events.EngineChosen, root.name, root.engine, root.why)
        self.once(events.PathChosen, root.name, root.path, root.why)
        self.changed()

    def changed(self) -> None:
        """The facts are no longer what the written part says."""
        self._changed = True

    def leaves_alone(self, module: nn.Module, parameters: Iterable[tuple[str, Any]]) -> bool:
        """Whether a model is sharded in a way no plan covers; said once."""
        why = unsupported.named(module, [parameter for _, parameter in parameters])
        if why:
            self.once(events.NoteAdded, "unsupported", why)
        return bool(why)

    def root_of(self, module: nn.Module) -> Root | None:
        return next((root for root in self.roots if root.owned.is_module(module)), None)

    def root_named(self, name: str) -> Root:
        return next(root for root in self.roots if root.name == name)

    def facts(self) -> Facts:
        return Facts(
            rank=self.rank,
            world=self.world,
            torch=torch.__version__,
            device=self.device,
            roots=tuple(root.fact() for root in self.roots),
            optimizers=tuple(self.optimizers.fact(o) for o in self.steps.optimizers()),
        )

    def lower(self) -> Program:
        """The program of all that is known now.

        A refusal of the planner ends the rank.
        """
        try:
            self.program = self.planner.lower(self.plan, self.facts())
        except Refused as refused:
            self.report(refused.diagnostics)
            raise
        self._changed = True
        return self.program

    def write_part(self) -> None:
        """Write this rank's part of the artefact, when it changed; from the script's thread."""
        if not self._changed or not self.roots:
            return
        self._changed = False
        facts = self.facts()
        self.program = self.planner.lower(self.plan, facts)
        path = self.folder / f"program-{self.rank}.msgpack"
        partial = path.with_suffix(".tmp")
        try:
            partial.write_bytes(self.planner.part(self.program, facts))
            partial.replace(path)
        except OSError as error:  # a full disk or a deleted folder must not end the training
            why = f"the program cannot be shown: {error.strerror or error}"
            self.once(events.NoteAdded, path.name, why)
            return
        self.emit(events.ProgramWritten, path.name)

    def check_fresh(self, names: frozenset[str] | None = None) -> None:
        """Refuse to go on when the artefact being applied was made from something else.

        Args:
            names: the digests that are known already; None at the first backward, where plan mode
                made the artefact too.
        """
        if self._expect is None or self.program is None:
            return
        facts = self.facts()
        found = self.planner.digests(self.lower(), facts)
        unknown = (
            {"graphs"}
            if any(r.engine == "inductor" and not r.graphs for r in self.roots)
            else set()
        )
        known = {
            n: d for n, d in found.items() if (names is None or n in names) and n not in unknown
        }
        self.report(self.planner.stale(self._expect, self.rank, known))

    # --- the script's calls ----------------------------------------------------------------------

    def attach_reducer(self, root: Root, reducer: Reducer) -> None:
        self._reducers[root.name] = reducer

    def drop_reducer(self, root: Root) -> None:
        reducer = self._reducers.pop(root.name, None)
        if reducer is not None:
            step_end.add(self, reducer)
            reducer.detach()

    def called(self, root: Root, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A root is about to be called by the script."""
        began = perf_counter()
        if torch.is_grad_enabled():
            root.called += 1
            tensor = first_tensor(args, kwargs)
            samples = tensor.shape[0] if tensor is not None and tensor.dim() else 0
            if self.steps.forward(samples, leading=root is self._leading):
                began = perf_counter()  # the end of a step counts its own time
            if self.verifying is not None:
                self.verifying.called(root, args, kwargs)
        self.track.enter(root.place)
        self.steps.own += perf_counter() - began

    def returned(self, root: Root, output: Any) -> None:
        """A root's call came back."""
        began = perf_counter()
        self.track.leave(root.place)
        self.steps.own += perf_counter() - began
        if self.verifying is not None:
            self.verifying.returned(root, output)

    @property
    def in_backward(self) -> bool:
        """Whether the script's thread is in a backward now."""
        return self._depth > 0

    @contextmanager
    def backward(self, tensors: Sequence[gate.Root], plain: bool) -> Iterator[None]:
        """Around every `torch.autograd.backward` of the script.

        Args:
            tensors: its roots.
            plain: no `inputs=`, no `create_graph=True`.
        """
        if self._depth:
            yield
            return
        if not self._judged and self.roots:
            self._before_backward()
        began = perf_counter()
        armed = [reducer for reducer in self._reducers.values() if reducer.armed]
        for reducer in armed:
            reducer.begin_backward()
        takers: list[Reducer] = []
        if gate.asked and plain and not torch_api.compiled_autograd_enabled():
            takers = [reducer for reducer in armed if reducer.takes_over]
        watched = _ALONE if self.verifying is None else self.verifying.backward(tensors)
        with watched:
            with gate.Opened(tensors, takers):
                self._depth += 1
                self.track.enter(self._backward_place)
                self.steps.own += perf_counter() - began
                try:
                    yield
                finally:
                    self._depth -= 1
                    ended = perf_counter()
                    self.track.leave(self._backward_place)
                    self.steps.own += perf_counter() - ended
            for reducer in armed:
                reducer.end_backward()
        ended = perf_counter()
        self._backward_done(tensors, armed)
        self.steps.own += perf_counter() - ended

    def _before_backward(self) -> None:
        """Judge what was captured while nothing was updated yet, once every model was called."""
        if self._expect is not None:
            self.check_fresh()
            self._expect = None
        if all(root.called for root in self.roots):
            self._judged = True
            if self.plan.precisions:
                self._look_at_precision(self.steps.step)
            self.report(self.planner.miscounted(self.plan, self.facts()))

    def _look_at_precision(self, step: int) -> None:
        for root in self.roots:
            self.precision.look(root.name, step + self.stage_offset)

    def _backward_done(self, tensors: Sequence[gate.Root], armed: list[Reducer]) -> None:
        leading = self._leading
        if leading is None:
            return
        reducer = self._reducers.get(leading.name)
        touched = reducer is None or reducer in armed or not self._reducers
        loss = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], torch.Tensor) else None
        self.steps.backward(loss, leading=touched)

    # --- the end of a step -----------------------------------------------------------------------

    def _step_ended(self) -> None:
        step = self.steps.step + 1
        for reducer in self._reducers.values():
            step_end.account(self, reducer)
        self.track.step_ended(step)
        if self.plan.precisions:
            self.loss_scales.step_ended(step)
            self._look_at_precision(step)
        if step == 1:
            self.masters.step_ended()
            self.report(
                replace(found, severity="warning") for found in shortfalls.unmatched_models(self)
            )
        if self.plan.guards:
            self.report(self.guards.unasked())
        self.peers.compare(step)
        if self._changed:
            self.write_part()


def resident_bytes() -> int:
    """Bytes of memory this process has resident now; the most ever where the system hides it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_rss()
    return pages * resource.getpagesize()


def peak_rss() -> int:
    """Bytes of memory this process ever had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
