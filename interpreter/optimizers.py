"""`update { optimizer = fused }`: build stock optimizers with `fused=True`, say which cannot be.

Only where the script left the choice to torch: a stock class, built without `foreach`, `fused`,
`capturable` or `differentiable`. A fused step rounds differently; the plan says so.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from sgplan.interpreter import events
from sgplan.interpreter.steps import StepWatch, elements
from sgplan.planner import torch_api
from sgplan.planner.facts import OptimizerFact, numbered

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank
    from sgplan.interpreter.roots import Root

FUSIBLE: tuple[type[Optimizer], ...] = (Adam, AdamW, SGD, Adagrad)
_CHOICES = ("foreach", "fused", "capturable", "differentiable")


@dataclass(frozen=True, slots=True)
class Fusing:
    """What the constructors ask and tell.

    Attributes:
        wanted: whether the plan asks for a fused optimizer over these parameters.
        built: told of an optimizer that was built fused by the plan.
        refused: told of an optimizer that stays as written, and why.
    """

    wanted: Callable[[Any], bool]
    built: Callable[[Optimizer], None]
    refused: Callable[[Optimizer, str], None]


def install(fusing: Fusing, watch: StepWatch) -> None:
    """Patch the constructors of the fusible classes, and hear of the others."""
    for cls in FUSIBLE:
        _patch(cls, fusing)

    def built(optimizer: Optimizer) -> None:
        why = _no_fused_form(type(optimizer))
        if why and fusing.wanted(optimizer.param_groups):
            fusing.refused(optimizer, why)

    watch.on_built.append(built)


def _no_fused_form(cls: type[Optimizer]) -> str:
    return "" if cls in FUSIBLE else f"`{cls.__name__}` has no fused form that sgplan knows"


def _patch(cls: type[Optimizer], fusing: Fusing) -> None:
    original: Callable[..., None] = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        if type(self) is not cls or isinstance(given.get("params"), (torch.Tensor, type(None))):
            return original(self, *args, **kwargs)
        given["params"] = [_read_once(entry) for entry in given["params"]]
        rest = {name: value for name, value in given.items() if name != "self"}
        if not fusing.wanted(given["params"]):
            return original(self, **rest)
        why = _objection(given)
        if not why:
            try:
                original(self, **{**rest, "fused": True})
                return fusing.built(self)
            except RuntimeError as error:
                why = str(error)
        original(self, **rest)
        return fusing.refused(self, why)

    cls.__init__ = init


def _read_once(entry: Any) -> Any:
    """A generator in a group can be read only once, and we look before torch does."""
    if not isinstance(entry, dict) or isinstance(entry.get("params"), (torch.Tensor, type(None))):
        return entry
    return {**entry, "params": list(entry["params"])}


def _objection(given: dict[str, Any]) -> str:
    for name in _CHOICES:
        if given.get(name) not in (None, False):
            return f"the script passes `{name}`"
    if given.get("fused") is False:
        return "the script passes `fused`"
    tensors = (tensor for entry in given["params"] for tensor in _tensors_of(entry))
    return next((why for tensor in tensors if (why := torch_api.fused_objection(tensor))), "")


class Optimizers:
    """The optimizers of one rank: which the plan wants fused, and what became of each."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._names: dict[int, str] = {}
        self._fused: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._objections: weakref.WeakKeyDictionary[Optimizer, str] = weakref.WeakKeyDictionary()
        # Why a step cannot be compiled; asked where a root is found after its optimizer was built.
        self.objection: Callable[[Optimizer], str] = lambda optimizer: ""

    def wants_fused(self, parameters: Sequence[Any]) -> bool:
        """Whether the plan asks for a fused optimizer over these parameters."""
        return self._wish(parameters) == "fused"

    def wants_compiled(self, optimizer: Optimizer) -> bool:
        """Whether the plan asks for a compiled step of this optimizer."""
        return self._wish(optimizer.param_groups) == "compiled"

    def barred(self, optimizer: Optimizer) -> str:
        """Why the plan compiles no step of this optimizer; empty when it may be compiled."""
        capture = self._rank.plan.capture_of(self._owner(optimizer.param_groups))
        return "`capture.engine = eager` compiles nothing" if capture.engine == "eager" else ""

    def _wish(self, parameters: Sequence[Any]) -> str:
        return self._rank.plan.update_of(self._owner(parameters)).optimizer

    def _owner(self, parameters: Sequence[Any]) -> str | None:
        """Name of the model that most elements belong to, None as long as it is not known.

        A module that the script compiles is known before it trains.
        """
        owned = {
            id(parameter): name
            for module in self._rank.compiled
            if (name := self._rank.name_of(module)) is not None
            for parameter in module.parameters()
        }
        owned |= {id(p): root.name for root in self._rank.roots for _, p in root.parameters}
        votes: Counter[str] = Counter()
        for tensor in (tensor for entry in parameters for tensor in _tensors_of(entry)):
            if id(tensor) in owned:
                votes[owned[id(tensor)]] += tensor.numel()
        return votes.most_common(1)[0][0] if votes else None

    def root_found(self, root: Root) -> None:
        """Judge the optimizers that were built before it was known whose parameters they have."""
        wish = self._rank.plan.update_of(root.name).optimizer
        for optimizer in self._rank.steps.optimizers():
            known = optimizer in self._objections
            if known or self._owner(optimizer.param_groups) != root.name:
                continue
            late = f"it was built before the script made `{root.name}` known (DDP, torch.compile)"
            fused = optimizer in self._fused
            if fused and wish == "as_written":
                cls = type(optimizer).__name__
                self._rank.once(events.FallbackTaken, root.name, f"{cls} fused", late)
            elif wish == "fused" and not fused:
                self.cannot_follow(optimizer, _no_fused_form(type(optimizer)) or late)
            elif wish == "compiled" and (why := self.objection(optimizer)):
                self.cannot_follow(optimizer, why)

    def name(self, optimizer: Optimizer) -> str:
        """Its name in the program."""
        known = self._rank.steps.optimizers()
        if len(known) != len(self._names):
            names = numbered([type(each).__name__ for each in known])
            self._names = dict(zip(map(id, known), names, strict=True))
        return self._names.get(id(optimizer), type(optimizer).__name__)

    def fused_built(self, optimizer: Optimizer) -> None:
        """The plan made this one fused."""
        self._fused.add(optimizer)
        self._rank.changed()

    def cannot_follow(self, optimizer: Optimizer, why: str) -> None:
        """An optimizer stays as written although the plan wants it otherwise."""
        self._objections[optimizer] = why
        self._rank.changed()
        what = f"{type(optimizer).__name__} as written"
        self._rank.once(events.FallbackTaken, "", what, why)

    def step_compiles(self, region: str) -> None:
        """A step is about to be compiled."""
        self._rank.emit(events.CompileStarted, region)

    def step_compiled(self, optimizer: Optimizer, region: str, seconds: float, cache: str) -> None:
        """A step was compiled, for the first time or because its inputs are others."""
        found = torch_api.compiling_frame()
        why = "" if found is None else found[1].strip()
        self._rank.emit(events.CompileFinished, region, seconds, cache, why.partition("\n")[0])
        self._rank.guards.step_compiled(region, seconds, why)

    def fact(self, optimizer: Optimizer) -> OptimizerFact:
        """An optimizer as pure data."""
        root = self._owner(optimizer.param_groups) or ""
        why = self._objections.get(optimizer, "")
        compiled = not why and self.wants_compiled(optimizer)
        fused = "fused" if optimizer in self._fused else "as_written"
        kind = "compiled" if compiled else fused
        return OptimizerFact(type(optimizer).__name__, elements(optimizer), kind, why, root)


def _tensors_of(entry: Any) -> Sequence[Any]:
    """The parameters in one entry of an optimizer's argument: a tensor, a named one, or a group."""
    if isinstance(entry, dict):
        inside = entry.get("params", ())
        entries = (inside,) if isinstance(inside, torch.Tensor) else inside
        return [p for inner in entries for p in _tensors_of(inner)]
    if isinstance(entry, tuple):
        return entry[1:]
    return (entry,)
