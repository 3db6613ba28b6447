"""`precision { params, master }`: parameters in 16 bits, and fp32 masters that the optimizer moves.

For the length of `optimizer.step` the masters stand in the optimizer's parameter groups, with the
gradients in fp32 and under the parameters' state; then they are copied into the parameters. The
parameters keep identity, memory and format, so hooks, buckets and compiled code never see a change.
Masters and the fp32 state go through the optimizer's own `state_dict` exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakTensorKeyDictionary

from sgplan.interpreter.loss_scale import given_closure
from sgplan.planner import torch_api

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank

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
        self._loading: WeakKeyDictionary[Optimizer, Any] = WeakKeyDictionary()
        self._swapped: WeakKeyDictionary[Optimizer, Swap] = WeakKeyDictionary()

    def install(self) -> None:
        """Swap around every optimizer's step; save and load with every optimizer."""
        if not any(block.stores for block in self._rank.plan.precisions):
            return
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)
        self._rank.steps.on_built.append(self._built)

    def store(self, model: str, parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Give the parameters of a new root the format of the plan, and masters where wanted.

        To be called before anything is told the root's formats: its facts, DDP's buckets.
        """
        params, master = self._rank.plan.storage_of(model)
        low = _DTYPES.get(params)
        for _, parameter in parameters:
            before = parameter.detach()
            if low is not None and parameter.dtype is torch.float32:
                parameter.data = before.to(low)
            if master and parameter.dtype in _LOW:
                self._keep(parameter, before)

    def _keep(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """A master of `value`, or the one that was loaded before the root was found."""
        loaded = self._masters.get(parameter)
        if loaded is None:
            self._masters[parameter] = value.to(torch.float32, copy=True)
        else:
            follow(loaded, value, parameter.dtype)

    # --- steps -----------------------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._give_back(optimizer)  # where the last step raised
        pairs = [(p, m) for p in _parameters(optimizer) if (m := self._masters.get(p)) is not None]
        if not pairs:
            return None
        for parameter, master in pairs:
            follow(master, parameter.detach(), parameter.dtype)
        swap = self._swapped[optimizer] = Swap(optimizer, pairs)
        swap.enter()
        closure = given_closure(args, kwargs)
        if closure is None:
            return None
        return (args[0], swap.outside(closure), *args[2:]), {
            name: value for name, value in kwargs.items() if name != "closure"
        }

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._give_back(optimizer)

    def _give_back(self, optimizer: Optimizer) -> None:
        swap = self._swapped.pop(optimizer, None)
        if swap is not None:
            swap.leave()

    # --- save and load ---------------------------------------------------------------------------

    def _built(self, optimizer: Optimizer) -> None:
        optimizer.register_state_dict_pre_hook(self._give_back)  # where the last step raised
        optimizer.register_state_dict_post_hook(self._saved)
        optimizer.register_load_state_dict_pre_hook(self._load)
        optimizer.register_load_state_dict_post_hook(self._loaded)

    def _saved(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        masters = {
            number: master
            for number, parameter in enumerate(_parameters(optimizer))
            if (master := self._masters.get(parameter)) is not None
        }
        if masters:
            state[KEY] = masters

    def _load(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        self._loading[optimizer] = state

    def _loaded(self, optimizer: Optimizer) -> None:
        """Torch has cast what it loaded to the format of the parameter; take the saved again."""
        saved = self._loading.pop(optimizer)
        numbers = [n for group in saved["param_groups"] for n in group["params"]]
        masters = saved.get(KEY, {})
        for place, (number, parameter) in enumerate(
            zip(numbers, _parameters(optimizer), strict=True)
        ):
            if place in masters:
                value = masters[place].to(parameter.device, torch.float32, copy=True)
                known = self._masters.get(parameter)
                if known is None:
                    self._masters[parameter] = value
                else:
                    known.copy_(value)
            if parameter in self._masters:
                _restore(optimizer.state[parameter], saved["state"].get(number, {}))


class Swap:
    """Masters in the place of parameters, for one step of one optimizer.

    Args:
        pairs: parameter and master.
    """

    def __init__(self, optimizer: Optimizer, pairs: Sequence[Pair]) -> None:
        self._optimizer = optimizer
        self._pairs = pairs

    def enter(self) -> None:
        """The optimizer sees the masters, with the gradients of the parameters in fp32."""
        given = [(p.grad, m) for p, m in self._pairs if p.grad is not None]
        upcast = [torch.empty_like(m) for _, m in given]
        if given:
            torch_api.copy_all(upcast, [gradient for gradient, _ in given])
        for (_, master), gradient in zip(given, upcast, strict=True):
            master.grad = gradient
        self._replace(self._pairs)

    def leave(self) -> None:
        """The optimizer sees the parameters again, and they have the value of the masters."""
        self._replace([(master, parameter) for parameter, master in self._pairs])
        for _, master in self._pairs:
            master.grad = None
        with torch.no_grad():
            torch_api.copy_all([p for p, _ in self._pairs], [m for _, m in self._pairs])

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


@torch.no_grad()
def follow(master: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> None:
    """Where a parameter is no longer what its master rounds to, somebody wrote it: take it over.

    Args:
        value: of the parameter, in its own format or in fp32.
        dtype: the format of the parameter.
    """
    same = master.to(dtype) == value.to(dtype)
    master.copy_(torch.where(same, master, value.to(torch.float32)))


def _restore(state: dict[str, Any], saved: dict[str, Any]) -> None:
    """Saved tensors in the format in which they were saved."""
    for name, value in saved.items():
        held = state.get(name)
        if not isinstance(value, torch.Tensor) or not isinstance(held, torch.Tensor):
            continue
        if held.dtype != value.dtype:
            state[name] = value.to(held.device, copy=True)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])
