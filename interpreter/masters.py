"""`precision { params, master }`: parameters in 16 bits, and fp32 masters that the optimizer moves.

For the length of an optimizer's inner step the masters stand in its parameter groups, with the
gradients in fp32 and under the parameters' state; then they are copied into the parameters. The
parameters keep identity, memory and format, so hooks, buckets and compiled code never see a change.
Masters and the fp32 state go through the optimizer's own `state_dict` exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from sgplan.interpreter import events
from sgplan.interpreter.inner_step import Step, given_closure
from sgplan.interpreter.low_inputs import cast_inputs
from sgplan.planner import torch_api

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank
    from sgplan.interpreter.roots import Root

KEY = "sgplan.masters"
"""Of an optimizer's state dict: masters by the number of their parameter; torch ignores it."""

_LOW = (torch.bfloat16, torch.float16)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

Pair = tuple[torch.Tensor, torch.Tensor]


class Masters:
    """The masters of one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._masters: Any = WeakTensorKeyDictionary()
        # Stored low without a master, because nothing moves them while they are frozen.
        self._frozen: Any = WeakTensorKeyDictionary()
        # Modules whose parameters have masters, and low parameters that are of none of them.
        self._stored: WeakSet[nn.Module] = WeakSet()
        self._strangers: Any = WeakTensorKeyDictionary()
        # Masters of the state that an optimizer is loading.
        self._loading: WeakKeyDictionary[Optimizer, dict[int, torch.Tensor]] = WeakKeyDictionary()
        # How many masters an optimizer had when its state was last seen to be wide.
        self._wide: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        # Whose state was loaded without masters.
        self._bare: WeakSet[Optimizer] = WeakSet()

    def install(self) -> None:
        """Swap around every optimizer's inner step; save and load with every optimizer."""
        if not any(block.stores for block in self._rank.plan.precisions):
            return
        self._rank.inner_steps.add(self.around)
        torch_api.keep_loaded_formats(lambda parameter: parameter in self._masters)
        self._rank.steps.on_built.append(self._built)

    def store(self, model: str, module: nn.Module) -> None:
        """Give the parameters of a new root the format of the plan, and masters where wanted.

        To be called before anything is told the root's formats: its facts, DDP's buckets. Frozen
        parameters are stored too, as they meet the others; they get a master when they are moved.
        Inputs are cast for the same reason.
        """
        params, master = self._rank.plan.storage_of(model)
        low = _DTYPES.get(params)
        if low is not None:
            cast_inputs(module, low)
        if master:
            self._stored.add(module)
        whole = _beside_statistics(module)
        for parameter in module.parameters():
            if id(parameter) in whole:
                continue
            before = parameter.detach()
            if low is not None and parameter.dtype is torch.float32:
                parameter.data = before.to(low)
            if not master or parameter.dtype not in _LOW:
                continue
            if parameter.requires_grad:
                self._keep(parameter, before)
            else:
                self._frozen[parameter] = True

    def _keep(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """A master of `value`, or the one that was loaded before the root was found."""
        loaded = self._masters.get(parameter)
        if loaded is None:
            self._masters[parameter] = value.to(torch.float32, copy=True)
        else:
            follow(loaded, value, parameter.dtype)

    def synchronize(self, root: Root, group: dist.ProcessGroup) -> None:
        """Every rank has the masters of the first one, as DDP has seen to for the parameters."""
        found = [m for _, p in root.parameters if (m := self._masters.get(p)) is not None]
        if found and group.size() > 1:
            torch_api.broadcast_all(group, [master.detach() for master in found])

    def of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The master of a parameter; None where there is none."""
        return self._masters.get(parameter)

    def step_ended(self) -> None:
        """Say which masters nothing moves."""
        for root in self._rank.roots:
            parameters = [p for _, p in root.parameters if p in self._masters]
            if parameters and not self._rank.steps.moves(parameters):
                what = f"no optimizer of torch moves `{root.name}`: its masters do nothing"
                self._rank.once(events.NoteAdded, "masters", what)

    # --- steps -----------------------------------------------------------------------------------

    def around(self, below: Step, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """A layer of the inner step: the step below moves the masters."""
        pairs = self._pairs(optimizer)
        if not pairs:
            return below(optimizer, *args, **kwargs)
        if optimizer in self._bare:
            self._bare.discard(optimizer)
            what = "a loaded optimizer state has no masters: they have the value of the parameters"
            self._rank.once(events.NoteAdded, "masters", what)
        swap = Swap(optimizer, pairs)
        if self._wide.get(optimizer) != len(pairs):
            swap.widen()
            self._wide[optimizer] = len(pairs)
        closure = given_closure(args, kwargs)
        if closure is not None:
            args = (swap.outside(closure), *args[1:])
            kwargs = {name: value for name, value in kwargs.items() if name != "closure"}
        try:
            swap.enter()
            return below(optimizer, *args, **kwargs)
        finally:
            swap.leave()

    def _pairs(self, optimizer: Optimizer) -> list[Pair]:
        found: list[Pair] = []
        for parameter in _parameters(optimizer):
            master = self._masters.get(parameter)
            if master is None and parameter.requires_grad and self._is_ours(parameter):
                master = self._masters[parameter] = parameter.detach().float()
            if master is not None:
                found.append((parameter, master))
        return found

    def _is_ours(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter without a master wants one: it was frozen, or stands for another."""
        if parameter.dtype not in _LOW or parameter in self._strangers:
            return False
        if self._frozen.pop(parameter, False):
            return True
        if any(parameter is each for module in self._stored for each in module.parameters()):
            return True
        self._strangers[parameter] = True
        return False

    # --- save and load ---------------------------------------------------------------------------

    def _built(self, optimizer: Optimizer) -> None:
        optimizer.register_state_dict_post_hook(self._saved)
        optimizer.register_load_state_dict_pre_hook(self._load)
        optimizer.register_load_state_dict_post_hook(self._loaded)

    def _saved(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        masters = {
            number: master.detach()
            for number, parameter in enumerate(_parameters(optimizer))
            if (master := self._masters.get(parameter)) is not None
        }
        if masters:
            state[KEY] = masters

    def _load(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        self._loading[optimizer] = state.get(KEY, {})

    def _loaded(self, optimizer: Optimizer) -> None:
        masters = self._loading.pop(optimizer)
        self._bare.discard(optimizer)
        self._wide.pop(optimizer, None)
        for place, parameter in enumerate(_parameters(optimizer)):
            value = masters.get(place)
            if value is None or value.shape != parameter.shape:
                continue
            known = self._masters.get(parameter)
            if known is None:
                self._masters[parameter] = value.to(parameter.device, torch.float32, copy=True)
            else:
                known.detach().copy_(value)
        if masters:
            self._wide[optimizer] = len(masters)
        elif optimizer.state:
            self._bare.add(optimizer)


class Swap:
    """Masters in the place of parameters, for one step of one optimizer.

    Args:
        pairs: parameter and master.
    """

    def __init__(self, optimizer: Optimizer, pairs: Sequence[Pair]) -> None:
        self._optimizer = optimizer
        self._pairs = pairs
        self._given: list[_Given] = []
        # One of torch moves what stands in its groups. Another may have a list of its own.
        self._foreign = not type(optimizer).__module__.startswith("torch.optim.")
        self._before: list[torch.Tensor] = []

    def widen(self) -> None:
        """State that was made in the parameters' format is in fp32 from now on."""
        for parameter, _ in self._pairs:
            state: dict[str, Any] = self._optimizer.state.get(parameter, {})
            for name, value in tuple(state.items()):
                state[name] = _widened(value)

    def enter(self) -> None:
        """The optimizer sees the masters, with the gradients of the parameters in fp32.

        What somebody wrote into the parameters is taken over first.
        """
        for parameter, master in self._pairs:
            follow(master, parameter.detach(), parameter.dtype)
        if self._foreign:
            self._before = [parameter.detach().clone() for parameter, _ in self._pairs]
        self._given = [_Given(p, m, m.grad) for p, m in self._pairs]
        dense: list[tuple[torch.Tensor, torch.Tensor]] = []
        for parameter, master in self._pairs:
            master.requires_grad_(parameter.requires_grad)
            gradient = parameter.grad
            if gradient is None or gradient.layout is not torch.strided:
                master.grad = None if gradient is None else gradient.to(torch.float32)
            else:
                master.grad = torch.empty_like(master)
                dense.append((master.grad, gradient))
        if dense:
            torch_api.copy_all([wide for wide, _ in dense], [gradient for _, gradient in dense])
        for given in self._given:
            given.seen()
        self._replace(self._pairs)

    @torch.no_grad()
    def leave(self) -> None:
        """The optimizer sees the parameters again, and they have the value of the masters.

        What the step wrote into the parameters themselves is taken over first. A parameter without
        a gradient is not written: a graph whose backward is still to come may have saved it.
        """
        self._replace([(master, parameter) for parameter, master in self._pairs])
        moved = [
            pair
            for pair, given in zip(self._pairs, self._given, strict=False)
            if self._foreign or given.stepped
        ]
        # Of a fused step that divides gradients by a scale where they are, no version tells.
        scaled = getattr(self._optimizer, "grad_scale", None) is not None
        for given in self._given:
            given.back(scaled)
        self._given = []
        for (parameter, master), before in zip(self._pairs, self._before, strict=False):
            value = torch.where(parameter != before, parameter, master)
            follow(master, value, parameter.dtype)
        self._before = []
        if moved:
            torch_api.copy_all([p for p, _ in moved], [m for _, m in moved])

    def outside(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """A closure that runs with the parameters in their place, as the script wrote it."""

        def call() -> Any:
            self.leave()
            try:
                return closure()
            finally:
                self.enter()

        return call

    def _replace(self, pairs: Sequence[Pair]) -> None:
        by_id = {id(old): new for old, new in pairs}
        for group in self._optimizer.param_groups:
            # In place: LBFGS keeps the list.
            group["params"][:] = [by_id.get(id(p), p) for p in group["params"]]
        state = self._optimizer.state
        for old, new in pairs:
            if old in state:
                state[new] = state.pop(old)


class _Given:
    """The gradient that a master has for one step.

    Args:
        outer: the one it had before: of another optimizer, which steps this one.
    """

    def __init__(
        self, parameter: torch.Tensor, master: torch.Tensor, outer: torch.Tensor | None
    ) -> None:
        self._parameter = parameter
        self._master = master
        self._outer = outer
        self._wide: torch.Tensor | None = None
        self._version = 0

    def seen(self) -> None:
        """It is in its place, and the step begins."""
        self._wide = self._master.grad
        self._version = 0 if self._wide is None else self._wide._version

    @property
    def stepped(self) -> bool:
        """Whether the step had a gradient to move the master by."""
        return self._wide is not None

    def back(self, scaled: bool) -> None:
        """Take it away; what the step did to it is done to the gradient of the parameter.

        Args:
            scaled: the step has divided it by a scale in place.
        """
        now, self._master.grad = self._master.grad, self._outer
        if self._wide is None:
            return
        if now is None:
            self._parameter.grad = None
        elif now is not self._wide or now._version != self._version or scaled:
            self._parameter.grad = now.to(self._parameter.dtype)


@torch.no_grad()
def follow(master: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> None:
    """Where a parameter is no longer what its master rounds to, somebody wrote it: take it over.

    Args:
        value: of the parameter, in its own format or in fp32.
        dtype: the format of the parameter.
    """
    same = master.to(dtype) == value.to(dtype)
    master.copy_(torch.where(same, master, value.to(torch.float32)))


def _beside_statistics(module: nn.Module) -> set[int]:
    """Parameters of layers with fp32 running statistics: torch wants both in one format."""
    return {
        id(parameter)
        for part in module.modules()
        if getattr(getattr(part, "running_mean", None), "dtype", None) is torch.float32
        for parameter in part.parameters(recurse=False)
    }


def _widened(value: Any) -> Any:
    """16-bit tensors in fp32, those in lists and dictionaries too: LBFGS has lists of them."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _LOW else value
    if isinstance(value, dict):
        return {name: _widened(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_widened, value))
    return value


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])
