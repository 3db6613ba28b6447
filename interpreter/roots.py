"""Roots: the modules the plan is about, what they are called, and their parameters as facts.

A root is a module given to DDP, one the script compiles, or, with neither, an outermost module that
owns parameters. Knows modules and names; refuses to know how they run.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from sgplan.grammar.plan import Model
from sgplan.planner.facts import Engine, GraphFact, MissFact, ParameterFact, RootFact
from sgplan.planner.facts import Path as ReductionPath

SHORT_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
# Parts that wrappers put into names; a root itself is unwrapped, so `module` is the script's own.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})


RootKind = Literal["ddp", "compiled", "module"]


@dataclass(slots=True, eq=False)
class Root:
    """One root while the script runs; its module belongs to the script and may be gone.

    Attributes:
        name: unique; the label of a `model` block, else `model`, `model1`, … .
        owned: the unwrapped module and its trainable parameters, held weakly.
        kind: how it became a root.
        engine, path, why: see `RootFact`.
        find_unused: DDP looks for unused parameters.
        graphs, misses: captured so far.
        written: graphs before an engine decomposed them, in plan mode.
        captures: compiles of graphs that take its parameters.
        called: calls with gradients enabled.
        made_compiled: whether the plan compiles it and the script does not.
        place: the number of its call's place, by the rank's track.
    """

    name: str
    owned: Owned
    kind: RootKind
    engine: Engine
    path: ReductionPath
    why: str
    find_unused: bool = False
    graphs: list[GraphFact] = field(default_factory=list[GraphFact])
    misses: list[MissFact] = field(default_factory=list[MissFact])
    written: list[GraphFact] = field(default_factory=list[GraphFact])
    captures: int = 0
    called: int = 0
    made_compiled: bool = False
    place: int = 0

    @property
    def module(self) -> nn.Module:
        """The unwrapped module, while the script has it."""
        return self.owned.module

    @property
    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Trainable, name and tensor, in registration order; empty when the module is gone."""
        return self.owned.parameters()

    @property
    def numel(self) -> int:
        """Elements of all its parameters."""
        return self.owned.numel

    @property
    def cls(self) -> str:
        """Qualified class of the module."""
        return self.owned.cls

    def fact(self) -> RootFact:
        """The root as pure data."""
        return RootFact(
            name=self.name,
            cls=self.cls,
            kind=self.kind,
            engine=self.engine,
            path=self.path,
            why=self.why,
            parameters=self.owned.parameter_facts,
            modules=self.owned.module_names,
            graphs=tuple(self.graphs),
            misses=tuple(self.misses),
            written=tuple(self.written),
            made_compiled=self.made_compiled,
        )


class Owned:
    """A module and its trainable parameters, held weakly; what facts need of them is kept.

    Args:
        module: unwrapped.
        parameters: trainable, name and tensor, in registration order.

    Attributes:
        cls: qualified class.
        numel: elements of all parameters.
        parameter_facts, module_names: as `RootFact` has them.
    """

    def __init__(self, module: nn.Module, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        self._module = weakref.ref(module)
        self._parameters = [(name, weakref.ref(parameter)) for name, parameter in parameters]
        self.cls = qualified(type(module))
        self.numel = sum(parameter.numel() for _, parameter in parameters)
        self.parameter_facts = tuple(parameter_fact(name, p) for name, p in parameters)
        self.module_names = tuple(
            (plain_name(name), type(part).__name__) for name, part in module.named_modules() if name
        )

    @property
    def module(self) -> nn.Module:
        module = self._module()
        if module is None:
            raise ReferenceError(f"the script let go of its {self.cls}")
        return module

    def is_module(self, module: nn.Module) -> bool:
        return self._module() is module

    def holds(self, module: nn.Module) -> bool:
        """Whether a module is a part of this one."""
        own = self._module()
        return own is not None and any(part is module for part in own.modules())

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, found) for name, ref in self._parameters if (found := ref()) is not None]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module without `torch.compile`'s and DDP's wrappers."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def plain_name(name: str) -> str:
    """A parameter or module name as in the unwrapped model."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def qualified(cls: type) -> str:
    """`module:Class`, as a `model` block's `is` names it."""
    return f"{cls.__module__}:{cls.__qualname__}"


def names_class(wanted: str, cls: type) -> bool:
    """Whether `module:Class` means `cls`; the script's own file name stands for `__main__` too."""
    if wanted == qualified(cls):
        return True
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return (
        main is not None
        and cls.__module__ == "__main__"
        and wanted == f"{Path(main).stem}:{cls.__qualname__}"
    )


def trainable(module: nn.Module, ignored: Iterable[str] = ()) -> list[tuple[str, nn.Parameter]]:
    """Parameters that DDP would reduce: registration order, shared ones once.

    Args:
        ignored: full names that DDP was told to leave out.
    """
    skip = set(ignored)
    seen: set[int] = set()
    found: list[tuple[str, nn.Parameter]] = []
    for prefix, owner in module.named_modules():
        for local, parameter in owner.named_parameters(recurse=False):
            name = f"{prefix}.{local}" if prefix else local
            if (
                parameter.requires_grad
                and f"{prefix}.{local}" not in skip
                and id(parameter) not in seen
            ):
                seen.add(id(parameter))
                found.append((plain_name(name), parameter))
    return found


def parameter_fact(name: str, parameter: torch.Tensor) -> ParameterFact:
    """A parameter as pure data."""
    return ParameterFact(
        name=name,
        shape=tuple(parameter.shape),
        strides=tuple(parameter.stride()),
        dtype=SHORT_DTYPES.get(parameter.dtype, str(parameter.dtype).removeprefix("torch.")),
        device=parameter.device.type,
        itemsize=parameter.element_size(),
        dense=dense(tuple(parameter.shape), tuple(parameter.stride())),
    )


def dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether memory of this shape and strides has neither holes nor overlap."""
    expected = 1
    for stride, size in sorted((t, n) for n, t in zip(shape, strides, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


class RootNames:
    """Gives roots their names, the same ones on every rank that builds its models in one order."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._models = list(models)
        self._seen: dict[str, int] = {}
        self._matched: set[str] = set()
        self._plain = 0

    def name(self, module: nn.Module) -> str:
        """The label of the `model` block that means this module, else `model`, `model1`, … ."""
        meant = self._meant(module)
        for label, _ in self._of_class(module):
            self._seen[label] = self._seen.get(label, 0) + 1
        self._matched.update(meant)
        if meant:
            return meant[0]
        self._plain += 1
        return "model" if self._plain == 1 else f"model{self._plain - 1}"

    def expected(self, module: nn.Module) -> str | None:
        """The label that a module gets if it is the next root; None when no block means it."""
        return next(iter(self._meant(module)), None)

    def _meant(self, module: nn.Module) -> list[str]:
        """Labels of the blocks whose `nth` is the number of modules that came before this one."""
        return [label for label, nth in self._of_class(module) if self._seen.get(label, 0) == nth]

    def _of_class(self, module: nn.Module) -> list[tuple[str, int]]:
        """Label and `nth` of the blocks that name the class of a module."""
        return [
            (model.label, model.nth)
            for model in self._models
            if model.label is not None and names_class(model.is_, type(module))
        ]

    def unmatched(self) -> Iterator[Model]:
        """`model` blocks that no root answered to."""
        return (model for model in self._models if model.label not in self._matched)


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The first tensor argument of a call, one level into lists and dicts."""
    for value in (*args, *kwargs.values()):
        inner = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, (list, tuple))
            else (value,)
        )
        for item in inner:
            if isinstance(item, torch.Tensor):
                return item
    return None
