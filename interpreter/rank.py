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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from sgplan.grammar.diagnostics import Diagnostic, Label, Refused, has_errors
from sgplan.grammar.plan import Capture, Plan, Sync
from sgplan.interpreter import events, gate
from sgplan.interpreter.agree import Agreement, disagreement
from sgplan.interpreter.likeness import Likeness
from sgplan.interpreter.misses import Misses
from sgplan.interpreter.record import Recorder
from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.roots import Root, RootNames, first_tensor, qualified
from sgplan.interpreter.steps import StepWatch, elements
from sgplan.planner import torch_api
from sgplan.planner.facts import Facts, MissFact, OptimizerFact, RootFact
from sgplan.planner.program import Bucket, Program
from torch import nn

Mode = Literal["apply", "plan"]
STRICT_WAIT = 600.0  # seconds for the other ranks to end their first step, compiling included


@dataclass(frozen=True, slots=True)
class Planner:
    """The planner's functions, wired in by `sgplan.attach`.

    Attributes:
        lower: plan and facts to a legal program.
        contract: the lines ranks must agree on for one root.
        difference: the first difference of two contracts, in words.
        digest: of contract lines.
        overlap: what `overlap = required` objects to, judged on captured graphs.
        digests: of what a program was made from, by name.
        stale: what differs from the artefact being applied; called with (expect, rank, digests).
        part: a rank's part of the artefact as bytes.
    """

    lower: Callable[[Plan, Facts], Program]
    contract: Callable[[Plan, Facts, RootFact, Sequence[Bucket]], list[str]]
    difference: Callable[[Sequence[str], Sequence[str]], str]
    digest: Callable[[Iterable[str]], str]
    overlap: Callable[[Plan, Facts, Program], list[Diagnostic]]
    digests: Callable[[Program, Facts], dict[str, str]]
    stale: Callable[[Any, int, dict[str, str]], list[Diagnostic]]
    part: Callable[[Program, Facts], bytes]


class Rank:
    """The state of one process under a plan.

    Attributes:
        plan, mode, rank, world, device: what it was started with.
        folder: the run folder.
        roots: in the order in which they were found.
        steps: the step watch.
    """

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
        self.names = RootNames(plan.models)
        self.steps = StepWatch(self.emit, self._step_ended)
        self.store: torch_api.Store | None = None
        self.misses = Misses(self.missed)
        self._likeness: dict[str, Likeness] = {}
        self.fused_objections: dict[int, str] = {}
        self.fused: set[int] = set()
        self._expect = expect
        self._open_recorder = recorder
        self._recorder: Recorder | None = None
        self._reducers: dict[str, Reducer] = {}
        self._groups: Counter[str] = Counter()
        self._said: set[tuple[str, ...]] = set()
        self._depth = 0
        self._changed = False
        self._ended = False
        self._pid = os.getpid()
        self.capturing = False  # Dynamo or Inductor is at work
        self.program: Program | None = None
        self.on_idle: Callable[[], None] | None = None  # set before the recorder opens

    # --- reporting -------------------------------------------------------------------------------

    @property
    def recorder(self) -> Recorder:
        """Opened at the first event, so that a process that never trains leaves no file."""
        if self._recorder is None:
            self._recorder = self._open_recorder()
            self._recorder.on_idle = self.on_idle
        return self._recorder

    def open(self) -> None:
        """Report this rank now, before anything is found in it."""
        _ = self.recorder

    def emit(self, event: type, *fields: Any) -> None:
        self.recorder.emit(event, *fields)

    def once(self, event: type, *fields: Any) -> None:
        """Emit an event the first time it is said in this rank."""
        key = (event.__name__, *map(str, fields))
        if key not in self._said:
            self._said.add(key)
            self.emit(event, *fields)

    def report(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Hand diagnostics to the parent; an error ends this rank."""
        found = list(diagnostics)
        for diagnostic in found:
            self.emit(events.DiagnosticRaised, diagnostic.to_wire())
        if has_errors(found):
            first = next(d for d in found if d.severity == "error")
            self.leave("refused", f"{first.code}: {first.message}", 1)

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
        self.steps.script_ends()
        self.uncaptured()
        self.publish_end()
        self.write_part()
        self.emit(events.ScriptEnded, how, detail, self.steps.step, peak_rss())
        self.recorder.close()

    def watch_exit(self) -> None:
        """See to it that the last event is written however the script ends."""
        previous = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            previous(kind, error, trace)
            self.end("raised", "".join(traceback.format_exception_only(kind, error)).strip())

        sys.excepthook = hook
        atexit.register(lambda: self.end("returned"))

    # --- roots and program -----------------------------------------------------------------------

    def capture_of(self, root: Root | None) -> Capture:
        return self.plan.capture_of(None if root is None else root.name)

    def sync_of(self, root: Root) -> Sync:
        return self.plan.sync_of(root.name)

    def add_root(self, root: Root) -> None:
        """A root was found: report it and lower again."""
        self.roots.append(root)
        self.emit(
            events.RootFound,
            root.name,
            root.fact().cls,
            root.kind,
            len(root.parameters),
            root.numel,
        )
        self.lower()

    def describe(self, root: Root) -> None:
        """Report engine and path of a root, each time they change."""
        self.once(events.EngineChosen, root.name, root.engine, root.why)
        self.once(events.PathChosen, root.name, root.path, root.why)
        self._changed = True

    def root_of(self, module: nn.Module) -> Root | None:
        return next((root for root in self.roots if root.module is module), None)

    def leading_root(self) -> Root | None:
        """The root with most parameter elements."""
        return max(self.roots, key=lambda root: root.numel, default=None)

    def facts(self) -> Facts:
        return Facts(
            rank=self.rank,
            world=self.world,
            torch=torch.__version__,
            device=self.device,
            roots=tuple(root.fact() for root in self.roots),
            optimizers=tuple(self._optimizer_fact(o) for o in self.steps.optimizers()),
        )

    def _optimizer_fact(self, optimizer: Any) -> OptimizerFact:
        owned = {id(p): root.name for root in self.roots for _, p in root.parameters}
        votes: Counter[str] = Counter()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                votes[owned.get(id(parameter), "")] += parameter.numel()
        root = votes.most_common(1)[0][0] if votes else ""
        kind = "fused" if id(optimizer) in self.fused else "as_written"
        why = self.fused_objections.get(id(optimizer), "")
        return OptimizerFact(type(optimizer).__name__, elements(optimizer), kind, why, root)

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
        partial.write_bytes(self.planner.part(self.program, facts))
        partial.replace(path)
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

    def missed(self, miss: MissFact) -> None:
        """A region runs as plain Python: report it, list it with the root that compiles."""
        compiled = [root for root in self.roots if root.engine == "inductor" or self.mode == "plan"]
        for root in compiled[:1] if len(compiled) > 1 else compiled:
            root.misses.append(miss)
        self._changed = True
        self.emit(events.CaptureMissed, miss.where, miss.reason)

    def uncaptured(self) -> None:
        """List every root that trained without a captured call although it should have had one."""
        for root in self.roots:
            if root.engine == "inductor" and root.called and not root.captures:
                miss = MissFact(qualified(type(root.module)), "no call of it was captured")
                root.misses.append(miss)
                self._changed = True
                self.once(events.CaptureMissed, root.name, miss.reason)

    def unmatched_models(self) -> list[Diagnostic]:
        """`model` blocks that name nothing in this script."""
        found = ", ".join(f"`{qualified(type(root.module))}`" for root in self.roots)
        return [
            Diagnostic(
                "SG0507",
                f"`{model.is_}` names no model of the script (nth = {model.nth})",
                None if (span := model.origin("is")) is None else Label(span),
                notes=(f"the script's models are {found}",),
                help="name one of them as `module:Class`",
            )
            for model in self.names.unmatched()
        ]

    # --- agreement -------------------------------------------------------------------------------

    def agree(self, root: Root, group: dist.ProcessGroup, extra: Sequence[str]) -> None:
        """Publish the contract of a root and wait for the verdict; a mismatch ends this rank."""
        began = perf_counter()
        self.store = torch_api.default_store()
        self._groups[group.group_name] += 1
        topic = f"contract/{group.group_name}/{self._groups[group.group_name]}"
        ranks = dist.get_process_group_ranks(group)
        agreement = Agreement(
            self.store, topic, dist.get_rank(), ranks, torch_api.group_timeout(group)
        )
        lines = [*self._contract(root), *extra]
        digest = self.planner.digest(lines)
        agreement.publish(digest, lines)
        try:
            other = agreement.differing(self._waiting_for)
        except TimeoutError as error:
            self.report([_absent(root.name, str(error))])
            return
        if other is None:
            self.emit(events.ContractAgreed, root.name, digest, perf_counter() - began)
            self.write_part()
            return
        first = ranks[0]
        difference = self.planner.difference(agreement.text(first), agreement.text(other))
        agreement.leave()
        self.report([disagreement(root.name, first, other, difference)])

    def _contract(self, root: Root) -> list[str]:
        program = self.lower()
        buckets = [bucket for bucket in program.buckets if bucket.root == root.name]
        return self.planner.contract(self.plan, self.facts(), root.fact(), buckets)

    def _waiting_for(self, ranks: list[int]) -> None:
        text = f"waiting for ranks {', '.join(map(str, ranks))} to enter DDP"
        self.once(events.NoteAdded, "agreement", text)

    # --- who ended, told through the store -------------------------------------------------------

    def publish_end(self) -> None:
        """Tell the other ranks that this one takes no further step."""
        if self.store is not None:
            try:
                self.store.set(f"sgplan/ended/{self.rank}", str(self.steps.step))
            except RuntimeError:
                self.store = None  # its owner is gone, and with it everybody who could read

    def lost(self, root: str, error: BaseException) -> BaseException:
        """What a failed wait means: names the ranks that ended and their steps."""
        ended = self._ended_ranks()
        step = self.steps.step + 1
        if ended:
            gone = ", ".join(f"rank {rank} ended its script after step {at}" for rank, at in ended)
            fact = f"rank {self.rank} waits in step {step} for a reduction that cannot come: {gone}"
            cure = "give every rank the same number of batches, or use `join()`"
        else:
            fact = f"rank {self.rank} waited in vain for a reduction of `{root}` in step {step}"
            cure = "look at what the other ranks did last (`sgplan show` on the run folder)"
        notes = (str(error).strip().split("\n")[0],)
        self.emit(
            events.DiagnosticRaised,
            Diagnostic("SG0905" if ended else "SG0904", fact, notes=notes, help=cure).to_wire(),
        )
        return RuntimeError(f"sgplan: {fact}")

    def _ended_ranks(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for rank in range(self.world):
            try:
                if self.store is not None and self.store.check([f"sgplan/ended/{rank}"]):
                    found.append((rank, self.store.get(f"sgplan/ended/{rank}").decode()))
            except RuntimeError:
                return found
        return found

    # --- the script's calls ----------------------------------------------------------------------

    def attach_reducer(self, root: Root, reducer: Reducer) -> None:
        self._reducers[root.name] = reducer

    def drop_reducer(self, root: Root) -> None:
        reducer = self._reducers.pop(root.name, None)
        if reducer is not None:
            reducer.detach()

    def called(self, root: Root, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A root is about to be called by the script."""
        if not torch.is_grad_enabled():
            return
        began = perf_counter()
        root.called += 1
        tensor = first_tensor(args, kwargs)
        samples = tensor.shape[0] if tensor is not None and tensor.dim() else 0
        self.steps.forward(samples, leading=root is self.leading_root())
        self.steps.own += perf_counter() - began

    @contextmanager
    def backward(self, tensors: Sequence[torch.Tensor], plain: bool) -> Iterator[None]:
        """Around every `torch.autograd.backward` of the script.

        Args:
            tensors: its root tensors.
            plain: no `inputs=`, no `create_graph=True`.
        """
        if self._depth:
            yield
            return
        if self._expect is not None and self.roots:
            self.check_fresh()
            self._expect = None
        began = perf_counter()
        armed = [reducer for reducer in self._reducers.values() if reducer.armed]
        takers: dict[int, gate.Owner] = {}
        for reducer in armed:
            reducer.begin_backward()
            if plain and not torch_api.compiled_autograd_enabled():
                takers |= reducer.could_take()
        self._depth += 1
        self.steps.own += perf_counter() - began
        try:
            if takers:
                with gate.opened(tensors, takers):
                    yield
            else:
                yield
        finally:
            self._depth -= 1
        self._backward_done(tensors, armed)

    def _backward_done(self, tensors: Sequence[torch.Tensor], armed: list[Reducer]) -> None:
        leading = self.leading_root()
        if leading is None:
            return
        reducer = self._reducers.get(leading.name)
        touched = reducer is None or reducer in armed or not self._reducers
        self.steps.backward(tensors[0] if len(tensors) == 1 else None, leading=touched)

    # --- optimizers ------------------------------------------------------------------------------

    def wants_fused(self, parameters: Sequence[Any]) -> bool:
        """Whether the plan asks for a fused optimizer over these parameters."""
        ids = {id(parameter) for entry in parameters for parameter in _tensors_of(entry)}
        root = next((r for r in self.roots if any(id(p) in ids for _, p in r.parameters)), None)
        return self.plan.update_of(None if root is None else root.name).optimizer == "fused"

    def fused_built(self, optimizer: Any) -> None:
        self.fused.add(id(optimizer))
        self._changed = True

    def cannot_fuse(self, optimizer: Any, why: str) -> None:
        """An optimizer stays as written although the plan wants it fused."""
        self.fused_objections[id(optimizer)] = why
        self.once(events.FallbackTaken, "", f"{type(optimizer).__name__} as written", why)

    # --- the end of a step -----------------------------------------------------------------------

    def _step_ended(self) -> None:
        for reducer in self._reducers.values():
            self.steps.wait += reducer.wait_seconds
            self.steps.own += reducer.own_seconds
            reducer.wait_seconds = reducer.own_seconds = 0.0
            self._note_hooks(reducer)
            self._check_overlap(reducer)
            reducer.taken = reducer.hooked = 0
            reducer.late.clear()
        if self.steps.step == 0:
            self.report(replace(found, severity="warning") for found in self.unmatched_models())
        self._compare_ranks()
        self.write_part()

    def _root_named(self, name: str) -> Root:
        return next(root for root in self.roots if root.name == name)

    def _note_hooks(self, reducer: Reducer) -> None:
        """A backward the gate refused, in whole or in part, was reduced by hooks: counted."""
        root = self._root_named(reducer.setup.root)
        if root.path == "in_graph" and reducer.hooked:
            total = reducer.hooked + reducer.taken
            why = f"{reducer.hooked} of {total} gradients were not safe inside the graph"
            self.emit(events.FallbackTaken, root.name, "reduced by hooks", why)

    def _check_overlap(self, reducer: Reducer) -> None:
        """`overlap = required` of a root without a captured backward, judged on its first step."""
        root = self._root_named(reducer.setup.root)
        sync = self.sync_of(root)
        if sync.overlap != "required" or self.steps.step or root.graphs or not reducer.late:
            return
        span = sync.origin("overlap")
        late = ", ".join(f"`{name}`" for name in reducer.late)
        self.report(
            [
                Diagnostic(
                    "SG0502",
                    f"{late} of `{root.name}` could start only behind the last gradient",
                    None if span is None else Label(span, "overlap is required here"),
                    notes=("in the first step no gradient was computed after its start",),
                    help="make `sync.bucket` smaller, or write `overlap = prefer`",
                )
            ]
        )

    def _compare_ranks(self) -> None:
        """Note, or refuse under `agree = strict`, that ranks run different graphs."""
        if self.store is None or self.world == 1:
            return
        for root in self.roots:
            if root.kind != "ddp" or root.path == "stock":
                continue
            likeness = self._likeness.get(root.name)
            if likeness is None:
                likeness = self._likeness[root.name] = Likeness(
                    self.store, root.name, self.rank, self.world
                )
            step = self.steps.step + 1
            likeness.publish(step, root.path, [graph.shapeless_digest for graph in root.graphs])
            capture = self.capture_of(root)
            strict = capture.agree == "strict" and step == 1
            difference = likeness.strict(step, STRICT_WAIT) if strict else likeness.difference()
            if difference and strict:
                span = capture.origin("agree")
                self.report(
                    [
                        Diagnostic(
                            "SG1003",
                            difference,
                            None if span is None else Label(span),
                            help="make the ranks run one graph, or write `agree = contract`",
                        )
                    ]
                )
            elif difference:
                self.once(events.NoteAdded, "ranks differ", difference)


def _absent(root: str, fact: str) -> Diagnostic:
    return Diagnostic(
        "SG0904",
        fact,
        notes=(f"the contract of `{root}` was not agreed on",),
        help="see what the absent ranks do before they wrap the model in DDP",
    )


def _tensors_of(entry: Any) -> Sequence[Any]:
    """The parameters in one entry of an optimizer's argument: a tensor, a named one, or a group."""
    if isinstance(entry, dict):
        return [p for inner in entry["params"] for p in _tensors_of(inner)]
    if isinstance(entry, tuple):
        return entry[1:]
    return (entry,)


def peak_rss() -> int:
    """Bytes of memory this process ever had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
