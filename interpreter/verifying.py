"""One rank of a run that `sgplan verify` compares: seeds it, records it, and ends it.

    reference run   records every moment, and the state before it
    planned run     records the same moments; before each it takes the reference's state over

So every moment starts from the same bits in both runs, and a difference is of that moment alone:
rounding in one step does not grow into a difference of the next, and a wrong step cannot hide
behind an earlier one. Knows what is recorded; what may differ, and how far, is the parent's.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgpack
import numpy
import torch
import torch.fx as fx
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sgplan.interpreter import gate, moments, recorded
from sgplan.interpreter.masters import follow
from sgplan.interpreter.meeting import Meeting, block_saves
from sgplan.interpreter.moments import Moment, Tensors
from sgplan.planner.capture.probe import Suspect, suspect
from sgplan.planner.capture.rewrite import GraphPass, Rewritten
from sgplan.planner.precision import loss_scale_at

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank
    from sgplan.interpreter.roots import Root


@dataclass(frozen=True, slots=True)
class Task:
    """What the parent wants of the ranks, in the run folder's `verify.msgpack`.

    Attributes:
        steps: after so many the run ends.
        seed: of every random number generator, when torch has been loaded.
        offset: added to the number of steps where a precision stage is looked up.
        without: keys of what is left out of the plan (`planner.leave_out`).
        against: the run folder of the reference run; None in that run itself.
        plain: the script as it is written; what it compiles goes to torch's own compiler.
        probe: name of a pass over Dynamo graphs, whose graphs are run before and after it.
        forward, gradient: relative differences that a probe allows.
    """

    steps: int
    seed: int
    offset: int = 0
    without: tuple[str, ...] = ()
    against: str | None = None
    plain: bool = False
    probe: str | None = None
    forward: float = 0.0
    gradient: float = 0.0


class Verifying:
    """Records one rank."""

    def __init__(self, rank: Rank, task: Task) -> None:
        self.task = task
        self._rank = rank
        self._folder = moments.folder_of(rank.folder, rank.rank)
        self._reference = (
            None if task.against is None else moments.folder_of(Path(task.against), rank.rank)
        )
        self._number = 0
        self._step = 0  # of the last call or backward
        self._calls: dict[str, tuple[int, Moment]] = {}
        self._updates: dict[int, _Update] = {}
        self._settled: set[tuple[int, str]] = set()
        self._leaves: dict[str, weakref.ref[torch.Tensor]] = {}
        self._leaves_used = False  # by a backward
        self._moved: dict[int, set[str]] = {}  # step: optimizers
        self._graph_formats: set[str] = set()
        self._meeting = Meeting(rank, "verified")
        self._save: Any = torch.save

    def install(self) -> None:
        """Seed everything and watch every optimizer; before the step watch does."""
        torch.manual_seed(self.task.seed)
        numpy.random.seed(self.task.seed % 2**32)
        random.seed(self.task.seed)
        self._save = block_saves(self._rank, "verifying")
        register_optimizer_step_pre_hook(self._before_update)

    def watch_updates(self) -> None:
        """Watch the ends of updates."""
        register_optimizer_step_post_hook(self._after_update)
        self._rank.steps.on_end = self._step_ended

    # --- graphs ----------------------------------------------------------------------------------

    def compiles(self, gm: fx.GraphModule) -> bool:
        """Whether the plan's compiler is to have a graph; in a plain run torch's own has it."""
        self._graph_formats |= recorded.graph_formats(gm)
        return not self.task.plain

    def probed(
        self, passes: Iterable[GraphPass], inputs: Sequence[Any], modules: Sequence[str]
    ) -> tuple[GraphPass, ...]:
        """The passes over a graph, the one that the parent suspects under observation."""
        return tuple(
            _Observed(each, self, inputs, modules) if each.name == self.task.probe else each
            for each in passes
        )

    def found(self, suspect: Suspect) -> None:
        """Leave the first suspect for the parent."""
        path = self._rank.folder / f"probe-{self._rank.rank}.msgpack"
        if not path.exists():
            wire = {"op": suspect.op, "module": suspect.module, "how": suspect.how}
            path.write_bytes(msgpack.Packer().pack(wire))

    # --- calls -----------------------------------------------------------------------------------

    def called(self, root: Root, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A root is about to be called with gradients enabled."""
        number, moment, reference = self._begin("call", root.name)
        key = (moment.step, root.name)
        if key not in self._settled:
            moment.values["state"] = self._kept(moment, "state", recorded.state_of(root))
            if reference is not None and "state" in reference.values:
                recorded.overwrite(recorded.state_of(root), reference.values["state"])
            # The random numbers of a step begin where those of the reference's did.
            self._settle_random(moment, reference)
            self._settled.add(key)
        inputs = dict(recorded.tensors((args, kwargs)))
        moment.values["inputs"] = self._kept(moment, "input", inputs)
        self._keep_leaves(root, inputs)
        self._calls[root.name] = number, moment

    def _settle_random(self, moment: Moment, reference: Moment | None) -> None:
        if any(step == moment.step for step, _ in self._settled):
            return
        moment.facts["random state before"] = recorded.random_digest()
        moment.facts["generators"] = recorded.random_state()
        if reference is not None and "generators" in reference.facts:
            recorded.set_random_state(reference.facts["generators"])

    def _keep_leaves(self, root: Root, inputs: Mapping[str, torch.Tensor]) -> None:
        """Remember inputs that gradients come to, until a backward has brought them."""
        if self._leaves_used:
            self._leaves, self._leaves_used = {}, False
        for path, tensor in inputs.items():
            if tensor.requires_grad and tensor.is_leaf:
                name = _named(root, f"input {path}")
                again = sum(known.partition(" #")[0] == name for known in self._leaves)
                self._leaves[f"{name} #{again + 1}" if again else name] = weakref.ref(tensor)

    def returned(self, root: Root, output: Any) -> None:
        """The call of a root came back."""
        began = self._calls.pop(root.name, None)
        if began is None:
            return
        number, moment = began
        outputs = dict(recorded.tensors(output))
        moment.values["outputs"] = self._kept(moment, "output", outputs)
        moment.values["buffers"] = self._kept(moment, "buffer", dict(root.module.named_buffers()))
        moment.facts["random state"] = recorded.random_digest()
        found = self._graph_formats | recorded.formats(root, outputs.values())
        moment.facts["compute"] = sorted(found)
        if output is not None and not outputs:
            kind = type(output).__qualname__
            moment.notes.append(f"what `{root.name}` returns is not compared: no tensor in {kind}")
        self._write(number, moment)

    # --- backwards -------------------------------------------------------------------------------

    @contextmanager
    def backward(self, tensors: Sequence[gate.Root]) -> Iterator[None]:
        """Around a backward of the script, its reductions included."""
        number, moment, reference = self._begin("backward", "")
        losses = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        given = {str(place): loss for place, loss in enumerate(losses)}
        moment.values["loss"] = self._kept(moment, "loss", given)
        leaves = self._gradient_leaves()
        before = {name: recorded.mark(leaf.grad) for name, leaf in leaves.items()}
        yield
        self._leaves_used = True
        gradients = {name: leaf.grad for name, leaf in leaves.items()}
        changed = [name for name, g in gradients.items() if recorded.mark(g) != before[name]]
        moment.facts["gradient topology"] = changed
        moment.facts["random state"] = recorded.random_digest()
        if reference is not None and self._overflows(gradients.values()):
            moment.facts["overflow"] = True
        moment.values["gradients"] = self._kept(moment, "gradient of", gradients)
        if reference is not None:  # what a script makes of them is another moment
            inputs = {n: g for n, g in gradients.items() if n in self._leaves and g is not None}
            recorded.overwrite(inputs, reference.values["gradients"])
        self._write(number, moment)

    def _gradient_leaves(self) -> dict[str, torch.Tensor]:
        """All that a backward may bring a gradient to: parameters, and inputs that ask for one."""
        alive = {name: leaf for name, ref in self._leaves.items() if (leaf := ref()) is not None}
        return {**alive, **self._parameters()}

    def _overflows(self, gradients: Iterable[torch.Tensor | None]) -> bool:
        """Whether the plan's loss scale was too large, so that the step is to be skipped."""
        plan, step = self._rank.plan, self._rank.steps.step
        scaled = any(loss_scale_at(plan, root.name, step) is not None for root in self._rank.roots)
        return scaled and not recorded.all_finite(gradients)

    # --- updates ---------------------------------------------------------------------------------

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _skipped_by_scaler(optimizer):
            return  # one that is not fused is not called at all then
        number, moment, reference = self._begin("update", self._optimizer_name(optimizer))
        parameters = self._parameters_of(optimizer)
        scale: torch.Tensor | None = getattr(optimizer, "grad_scale", None)
        gradients = recorded.unscaled({n: p.grad for n, p in parameters.items()}, scale)
        moment.values["gradients at the update"] = self._kept(moment, "gradient of", gradients)
        start = None if reference is None else reference.values["before"]
        moment.values["before"] = recorded.kept(
            {**parameters, **self._masters_of(parameters, start)}
        )
        update = _Update(number, moment, reference)
        if reference is not None and self._overflows(gradients.values()):
            update.overflow = True
            update.state = recorded.kept(self._optimizer_state(optimizer))
        elif reference is not None:
            given = reference.values["gradients at the update"]
            recorded.overwrite_gradients(parameters, given, scale)
        self._updates[id(optimizer)] = update

    def _after_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        update = self._updates.pop(id(optimizer), None)
        if update is None:
            return
        moment = update.moment
        parameters, state = self._parameters_of(optimizer), self._optimizer_state(optimizer)
        masters = self._masters_of(parameters)
        moment.values["parameters"] = recorded.kept({**parameters, **masters})
        moment.values["optimizer state"] = self._kept(moment, "optimizer state", state)
        moment.facts["optimizer settings"] = recorded.settings(optimizer)
        if update.overflow:
            moved = recorded.differing(moment.values["before"], moment.values["parameters"])
            moved += recorded.differing(update.state, moment.values["optimizer state"])
            moment.facts["skipped"] = moved
            self._catch_up(optimizer, update)
        if update.reference is not None:
            for moved in (parameters, masters):
                recorded.overwrite(moved, update.reference.values["parameters"])
            recorded.overwrite(state, update.reference.values["optimizer state"])
        self._moved.setdefault(moment.step, set()).add(moment.name)
        self._write(update.number, moment)
        if self._rank.steps.step >= self.task.steps:
            self._leave_when_complete()

    def _catch_up(self, optimizer: Optimizer, update: _Update) -> None:
        """Give an optimizer that has skipped a step the state that the reference's has by then."""
        assert update.reference is not None
        parameters = self._parameters_of(optimizer)
        for name, value in update.reference.values["optimizer state"].items():
            owner, _, kind = name.rpartition(".")
            parameter = parameters.get(owner)
            if parameter is not None and value is not None:
                on = parameter.device if value.dim() or optimizer.defaults.get("fused") else "cpu"
                optimizer.state[parameter].setdefault(kind, value.to(on, copy=True))

    def _optimizer_name(self, optimizer: Optimizer) -> str:
        built = self._rank.steps.optimizers()
        place = next((n for n, known in enumerate(built) if known is optimizer), len(built))
        return f"{type(optimizer).__name__}{place or ''}"

    def _parameters_of(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        known = {id(p): name for name, p in self._parameters().items()}
        listed = (p for group in optimizer.param_groups for p in group["params"])
        return {known.get(id(p), f"parameter {place}"): p for place, p in enumerate(listed)}

    def _masters_of(
        self, parameters: Mapping[str, torch.Tensor], start: Tensors | None = None
    ) -> dict[str, torch.Tensor]:
        """Masters by the name of their parameter, whose 16 bits hide how far a step has moved it.

        Args:
            start: values that masters take up, where their parameters are the rounding of them.
        """
        found: dict[str, torch.Tensor] = {}
        for name, parameter in parameters.items():
            master = self._rank.masters.of(parameter)
            if master is None:
                continue
            found[name] = master
            if start is not None:
                recorded.overwrite({name: master}, start)
            follow(master, parameter.detach(), parameter.dtype)
        return found

    def _optimizer_state(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters_of(optimizer).items():
            state: Mapping[str, Any] = optimizer.state.get(parameter, {})
            found.update(
                (f"{name}.{kind}", value)
                for kind, value in state.items()
                if isinstance(value, torch.Tensor)
            )
        return found

    def _parameters(self) -> dict[str, torch.Tensor]:
        """The trainable parameters of all roots; of a second root with its name in front."""
        return {
            _named(root, name): parameter
            for root in self._rank.roots
            for name, parameter in root.parameters
        }

    # --- moments ---------------------------------------------------------------------------------

    def _begin(self, kind: moments.Kind, name: str) -> tuple[int, Moment, Moment | None]:
        number = self._number
        self._number += 1
        if kind != "update":  # the leading optimizer's ends the step that others still belong to
            self._step = self._rank.steps.step
        reference = None if self._reference is None else moments.read(self._reference, number)
        if reference is not None and (reference.kind, reference.name) != (kind, name):
            reference = None  # another path; the parent says so
        return number, Moment(kind, name, self._step), reference

    def _kept(
        self, moment: Moment, what: str, tensors: Mapping[str, torch.Tensor | None]
    ) -> Tensors:
        """Copies; what cannot be copied is noted."""
        moment.notes += recorded.not_kept(what, tensors)
        return recorded.kept(tensors)

    def _write(self, number: int, moment: Moment) -> None:
        moments.write(self._folder, number, moment, self._save)

    def _step_ended(self) -> None:
        if self._rank.steps.step >= self.task.steps:
            self._leave_when_complete()

    def _leave_when_complete(self) -> None:
        """End this rank when nothing of the last step is to come, or a step more is over."""
        earlier = {
            name for step, names in self._moved.items() if step < self._step for name in names
        }
        missing = earlier - self._moved.get(self._step, set())
        if not missing or self._rank.steps.step > self.task.steps:
            self._meeting.arrive()
            self._rank.leave("verified", "", 0)


@dataclass(slots=True)
class _Update:
    """An optimizer's step that has begun.

    Attributes:
        overflow: the plan's loss scale is to skip it.
        state: of the optimizer before it, where that is so.
    """

    number: int
    moment: Moment
    reference: Moment | None
    overflow: bool = False
    state: Tensors = field(default_factory=dict[str, torch.Tensor | None])


def _skipped_by_scaler(optimizer: Optimizer) -> bool:
    """Whether a GradScaler found infinite gradients and a fused step will move nothing."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found.item())


@dataclass(frozen=True, slots=True)
class _Observed:
    """A pass over Dynamo graphs whose graph is run before and after it."""

    name: ClassVar[str] = "observed"
    inner: GraphPass
    owner: Verifying
    inputs: Sequence[Any]
    modules: Sequence[str]

    @property
    def key(self) -> str:
        return self.inner.key

    def apply(self, graph: Rewritten) -> Rewritten:
        after = self.inner.apply(graph)
        task = self.owner.task
        found = suspect(graph, after, self.inputs, self.modules, task.forward, task.gradient)
        if found is not None:
            self.owner.found(found)
        return after


def _named(root: Root, name: str) -> str:
    return name if root.name == "model" else f"{root.name}/{name}"
