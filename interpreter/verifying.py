"""One rank of a run that `sgplan verify` compares: seeds it, records it, and ends it.

    reference run   records every moment, and the state before it
    planned run     records the same moments; before each it takes the reference's state over

So every moment starts from the same bits in both runs, and a difference is of that moment alone:
rounding in one step does not grow into a difference of the next, and a wrong step cannot hide
behind an earlier one. Knows what is recorded; what may differ, and how far, is the parent's.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgpack
import numpy
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sgplan.interpreter import gate, moments
from sgplan.interpreter.meeting import Meeting, block_saves
from sgplan.interpreter.moments import Moment, Tensors
from sgplan.planner.capture.probe import Suspect, suspect
from sgplan.planner.capture.rewrite import GraphPass, Rewritten

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank
    from sgplan.interpreter.roots import Root

PLAIN = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Task:
    """What the parent wants of the ranks, in the run folder's `verify.msgpack`.

    Attributes:
        steps: after so many the run ends.
        seed: of every random number generator, when torch has been loaded.
        offset: added to the number of steps where a precision stage is looked up.
        without: keys of what is left out of the plan (`planner.leave_out`).
        against: the run folder of the reference run; None in that run itself.
        probe: name of a pass over Dynamo graphs, whose graphs are run before and after it.
        forward, gradient: relative differences that a probe allows.
    """

    steps: int
    seed: int
    offset: int = 0
    without: tuple[str, ...] = ()
    against: str | None = None
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
        self._calls: dict[str, tuple[int, Moment]] = {}
        self._updates: dict[int, tuple[int, Moment, Moment | None]] = {}
        self._settled: set[tuple[int, str]] = set()
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
            moment.values["state"] = _kept(_state(root))
            if reference is not None and "state" in reference.values:
                _overwrite(_state(root), reference.values["state"])
            # The random numbers of a step begin where those of the reference's did.
            self._settle_random(moment, reference)
            self._settled.add(key)
        moment.values["inputs"] = _kept(dict(_tensors((args, kwargs))))
        moment.facts["compute"] = _compute(root)
        self._calls[root.name] = number, moment

    def _settle_random(self, moment: Moment, reference: Moment | None) -> None:
        if any(step == moment.step for step, _ in self._settled):
            return
        moment.facts["random state before"] = _random_digest()
        moment.facts["generators"] = _random_state()
        if reference is not None and "generators" in reference.facts:
            _set_random_state(reference.facts["generators"])

    def returned(self, root: Root, output: Any) -> None:
        """The call of a root came back."""
        began = self._calls.pop(root.name, None)
        if began is None:
            return
        number, moment = began
        moment.values["outputs"] = _kept(dict(_tensors(output)))
        moment.values["buffers"] = _kept(dict(root.module.named_buffers()))
        moment.facts["random state"] = _random_digest()
        self._write(number, moment)

    # --- backwards -------------------------------------------------------------------------------

    @contextmanager
    def backward(self, tensors: Sequence[gate.Root]) -> Iterator[None]:
        """Around a backward of the script, its reductions included."""
        number, moment, _ = self._begin("backward", "")
        losses = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        moment.values["loss"] = _kept({str(place): loss for place, loss in enumerate(losses)})
        parameters = self._parameters()
        before = {name: _mark(p.grad) for name, p in parameters.items()}
        yield
        changed = [name for name, p in parameters.items() if _mark(p.grad) != before[name]]
        moment.facts["gradient topology"] = changed
        moment.facts["random state"] = _random_digest()
        moment.values["gradients"] = _kept({name: p.grad for name, p in parameters.items()})
        self._write(number, moment)

    # --- updates ---------------------------------------------------------------------------------

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        number, moment, reference = self._begin("update", self._optimizer_name(optimizer))
        parameters = self._parameters_of(optimizer)
        moment.values["gradients at the update"] = _kept(
            {name: p.grad for name, p in parameters.items()}
        )
        moment.values["before"] = _kept(dict(parameters))
        if reference is not None:
            _overwrite_gradients(parameters, reference.values["gradients at the update"])
        self._updates[id(optimizer)] = number, moment, reference

    def _after_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        began = self._updates.pop(id(optimizer), None)
        if began is None:
            return
        number, moment, reference = began
        parameters, state = self._parameters_of(optimizer), self._optimizer_state(optimizer)
        moment.values["parameters"] = _kept(dict(parameters))
        moment.values["optimizer state"] = _kept(state)
        moment.facts["optimizer settings"] = _settings(optimizer)
        if reference is not None:
            _overwrite(parameters, reference.values["parameters"])
            _overwrite(state, reference.values["optimizer state"])
        self._write(number, moment)

    def _optimizer_name(self, optimizer: Optimizer) -> str:
        built = self._rank.steps.optimizers()
        place = next((n for n, known in enumerate(built) if known is optimizer), len(built))
        return f"{type(optimizer).__name__}{place or ''}"

    def _parameters_of(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        known = {id(p): name for name, p in self._parameters().items()}
        listed = (p for group in optimizer.param_groups for p in group["params"])
        return {known.get(id(p), f"parameter {place}"): p for place, p in enumerate(listed)}

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
        reference = None if self._reference is None else moments.read(self._reference, number)
        if reference is not None and (reference.kind, reference.name) != (kind, name):
            reference = None  # another path; the parent says so
        return number, Moment(kind, name, self._rank.steps.step), reference

    def _write(self, number: int, moment: Moment) -> None:
        moments.write(self._folder, number, moment, self._save)

    def _step_ended(self) -> None:
        if self._rank.steps.step >= self.task.steps:
            self._meeting.arrive()
            self._rank.leave("verified", "", 0)


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


def _state(root: Root) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a root; they share memory with the module's."""
    module = root.module
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _mark(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """Changes whenever a gradient is written or replaced."""
    return None if gradient is None else (id(gradient), gradient._version)


def _kept(tensors: Mapping[str, torch.Tensor | None]) -> Tensors:
    """Copies of their values now."""
    return {
        name: None if tensor is None else tensor.detach().to("cpu", copy=True)
        for name, tensor in tensors.items()
        if tensor is None or tensor.layout is torch.strided
    }


def _overwrite(ours: Mapping[str, torch.Tensor], theirs: Tensors) -> None:
    """Give our tensors the reference's values, unseen by autograd."""
    for name, tensor in ours.items():
        value = theirs.get(name)
        if value is not None and value.shape == tensor.shape:
            tensor.data.copy_(value)


def _overwrite_gradients(parameters: Mapping[str, torch.Tensor], theirs: Tensors) -> None:
    for name, parameter in parameters.items():
        value = theirs.get(name)
        if value is None:
            parameter.grad = None
        elif parameter.grad is None:
            parameter.grad = value.to(parameter.device)
        else:
            parameter.grad.data.copy_(value)


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested lists, mappings and dataclasses, by its path."""
    if isinstance(value, torch.Tensor):
        yield path or "0", value
        return
    for name, inner in _parts(value):
        yield from _tensors(inner, f"{path}.{name}" if path else str(name))


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name)) for field in fields(value))
    return ()


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The numbers and words of every group; how a step is computed is the plan's."""
    own = ("params", "fused", "foreach")
    return [
        {name: _plain(value) for name, value in group.items() if name not in own}
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return value if isinstance(value, PLAIN) else str(value)


def _compute(root: Root) -> list[str]:
    """The number formats of the root's parameters, and of autocast around this call."""
    kinds = {parameter.dtype for _, parameter in root.parameters}
    device = next((p.device.type for _, p in root.parameters), "cpu")
    if torch.is_autocast_enabled(device):
        kinds.add(torch.get_autocast_dtype(device))
    return sorted(str(kind).removeprefix("torch.") for kind in kinds)


# --- random numbers ------------------------------------------------------------------------------


def _random_state() -> list[Any]:
    kind, keys, position, has_gauss, cached = numpy.random.get_state()  # pyright: ignore[reportGeneralTypeIssues]
    version, words, gauss = random.getstate()
    return [
        torch.get_rng_state(),
        [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        [version, list(words), gauss],
    ]


def _set_random_state(state: list[Any]) -> None:
    drawn, (kind, keys, position, has_gauss, cached), (version, words, gauss) = state
    torch.set_rng_state(drawn)
    keys = numpy.array(keys, dtype=numpy.uint32)
    numpy.random.set_state((kind, keys, position, has_gauss, cached))
    random.setstate((version, tuple(words), gauss))


def _random_digest() -> dict[str, str]:
    """Digests of the states of all generators that scripts share, by library."""
    drawn, numbers, words = _random_state()
    found = {
        "torch": drawn.numpy().tobytes(),
        "numpy": repr(numbers).encode(),
        "random": repr(words).encode(),
    }
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in found.items()}
