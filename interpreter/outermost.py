"""Roots of a script with neither DDP nor `torch.compile`: outermost modules called to train.

`Module.__call__` is watched until the second step has ended and then given back, so that a module
call costs nothing more afterwards; a module first called later is no root.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sgplan.interpreter.rank import Rank
from sgplan.interpreter.roots import Root, trainable, unwrapped

WATCHED_STEPS = 2

Entering = Callable[[Root, nn.Module], None]


class Outermost:
    """Finds such roots for one rank."""

    def __init__(
        self, rank: Rank, entering: Entering, compiles: Callable[[nn.Module], bool]
    ) -> None:
        self._rank = rank
        self._entering = entering
        self._compiles = compiles
        self._inside = False
        self._roots: weakref.WeakKeyDictionary[nn.Module, Root] = weakref.WeakKeyDictionary()
        self._call = nn.Module.__call__

    def install(self) -> None:
        """Watch module calls."""
        finder, original = self, self._call

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if finder._inside or isinstance(module, DDP) or torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            return finder.outermost(module, args, kwargs)

        nn.Module.__call__ = call

    def outermost(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with no module call around it."""
        self._inside = True
        try:
            root = self._root(module)
            if root is not None:
                self._rank.called(root, args, kwargs)
            with self._rank.calls.of(root):
                output = self._call(module, *args, **kwargs)
            if root is not None:
                self._rank.returned(root, output)
            return output
        finally:
            self._inside = False
            if self._rank.steps.step >= WATCHED_STEPS:
                self._rest()

    def _root(self, module: nn.Module) -> Root | None:
        if module in self._roots:
            return self._roots[module]
        if not torch.is_grad_enabled() or any(r.kind == "ddp" for r in self._rank.roots):
            return None
        inner = unwrapped(module)
        parameters = trainable(inner)
        if self._rank.root_of(inner) is not None or not parameters or self._compiles(inner):
            return None
        if self._rank.leaves_alone(inner, parameters):
            return None
        why = "the script runs it eagerly"
        root = self._rank.make_root(inner, parameters, "module", "eager", "none", why)
        self._roots[module] = root
        self._rank.add_root(root)
        self._entering(root, inner)
        return root

    def _rest(self) -> None:
        """Give `Module.__call__` back; roots found so far go on being counted at their own call."""
        nn.Module.__call__ = self._call
        for root in self._roots.values():
            _count_calls(self._rank, root)


def _count_calls(rank: Rank, root: Root) -> None:
    module = root.module
    inner = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        rank.called(root, args, kwargs)
        with rank.calls.of(root):
            output = (inner or module._call_impl)(*args, **kwargs)
        rank.returned(root, output)
        return output

    module._compiled_call_impl = call
