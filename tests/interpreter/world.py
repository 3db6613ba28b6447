"""A rank in this process: a real plan and program, a group of one; events are kept in a list."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import LBFGS, Optimizer

from sgplan.attach import _planner
from sgplan.grammar.check import check_text
from sgplan.grammar.plan import Plan
from sgplan.interpreter import ops, optimizers
from sgplan.interpreter.compiled_step import STOCK
from sgplan.interpreter.handlers import collectives, compute, memory, state
from sgplan.interpreter.rank import Rank
from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.reducer_setup import ReducerSetup
from sgplan.interpreter.roots import Owned, Root, trainable
from sgplan.interpreter.steps import StepWatch
from sgplan.interpreter.takeover import reductions_of
from sgplan.interpreter.track import NoTrack
from sgplan.planner import torch_api

del ops, collectives, compute, memory, state  # imported for what they register


class Left(BaseException):
    """The rank ended its process."""


class Told(NoTrack):
    """Keeps the places that were entered, of every instruction."""

    full = True

    def __init__(self) -> None:
        self._names: list[str] = []
        self.entered: list[str] = []

    def place(self, name: str) -> int:
        self._names.append(name)
        return len(self._names) - 1

    def enter(self, place: int) -> None:
        self.entered.append(self._names[place])


class Kept:
    """Keeps what a recorder would write, and the places that were entered."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.track = Told()
        self.on_idle: Callable[[], None] | None = None
        self.closed = False

    def emit(self, event: type, *fields: Any) -> None:
        self.events.append(event(*fields))

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def started(self) -> list[str]:
        """Buckets whose reductions began, in order."""
        return self._behind("reduce.start ")

    def waits(self) -> list[str]:
        """First buckets of what was waited for, in order."""
        return self._behind("wait ")

    def _behind(self, kind: str) -> list[str]:
        return [name.removeprefix(kind) for name in self.track.entered if name.startswith(kind)]

    def codes(self) -> list[str]:
        """Codes of all diagnostics."""
        return [e.diagnostic["code"] for e in self.events if hasattr(e, "diagnostic")]


def plan(body: str = "", world: int = 1) -> Plan:
    """A checked and resolved plan; the test fails on any diagnostic."""
    found, problems = check_text(f"sgplan 1\n\n{body}\n", "plan.sgplan")
    assert found is not None, problems
    assert not problems
    return found.resolve(world, "cpu")


PLANNER = _planner()


def rank_under(
    folder: Path, body: str = "", *, mode: Any = "apply", world: int = 1, expect: Any = None
) -> tuple[Rank, Kept]:
    """A rank under a plan; nothing of torch is patched."""
    kept = Kept()
    opened: Any = lambda: kept  # noqa: E731
    return Rank(plan(body, world), mode, folder, 0, opened, PLANNER, expect), kept


def root_of(module: nn.Module, *, name: str = "model", path: Any = "hooks") -> Root:
    """A data-parallel root over a module."""
    return Root(name, Owned(module, trainable(module)), "ddp", "eager", path, "a test")


def reducer_of(
    module: nn.Module,
    folder: Path,
    body: str = "",
    *,
    find_unused: bool = False,
    timeout: float | None = None,
    lost: Callable[[str, BaseException], BaseException] = lambda root, error: error,
) -> tuple[Reducer, Kept]:
    """A planned reducer of a module over the default group, with the program of a real plan."""
    rank, kept = rank_under(folder, body)
    root = root_of(module)
    rank.roots.append(root)
    program = rank.lower()
    setup = ReducerSetup(
        track=kept.track,
        root=root.name,
        names=[name for name, _ in root.parameters],
        parameters=[parameter for _, parameter in root.parameters],
        buckets=program.buckets,
        instructions=reductions_of(program, root.name),
        group=torch_api.default_group(),
        find_unused=find_unused,
        in_graph=True,
        timeout=timeout,
        lost=lost,
    )
    return Reducer(setup), kept


@contextlib.contextmanager
def group_of_one() -> Iterator[None]:
    """A default process group with one rank, in memory."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


_PATCHED: tuple[tuple[Any, str], ...] = (
    (torch, "compile"),
    (torch, "save"),
    (torch, "_TorchCompileInductorWrapper"),
    (torch.autograd, "backward"),
    (nn.Module, "compile"),
    (nn.Module, "__call__"),
    (DDP, "__init__"),
    (DDP, "_ddp_init_helper"),
    (DDP, "_run_ddp_forward"),
    (DDP, "register_comm_hook"),
    (DDP, "_register_builtin_comm_hook"),
    (DDP, "_register_fused_optim"),
    (DDP, "join"),
    (DDP, "join_hook"),
    (DDP, "_set_static_graph"),
    (GradScaler, "__init__"),
    (GradScaler, "step"),
    (Optimizer, "__init__"),
    *((cls, "__init__") for cls in optimizers.FUSIBLE),
)


def watched() -> StepWatch:
    """A watch over the optimizers of this process; with `give_back_afterwards`."""
    watch = StepWatch(lambda *fields: None, lambda: None)
    watch.install()
    return watch


def give_back_afterwards(patch: pytest.MonkeyPatch) -> None:
    """Whatever the code under test patches in torch is undone when the test ends."""
    for owner, name in _PATCHED:
        patch.setattr(owner, name, getattr(owner, name))
    for name in ("profile_hook_step", "_process_value_according_to_param_policy"):
        patch.setattr(Optimizer, name, vars(Optimizer)[name])
    for cls in (*STOCK, LBFGS):
        if "step" in vars(cls):
            patch.setattr(cls, "step", cls.step)
    module = sys.modules["torch.optim.optimizer"]
    patch.setattr(module, "_global_optimizer_post_hooks", OrderedDict())


def leave_raises(patch: pytest.MonkeyPatch) -> None:
    """Ending the process raises `Left` with the status instead."""

    def left(status: int) -> None:
        raise Left(status)

    patch.setattr("os._exit", left)
