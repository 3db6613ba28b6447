"""Where a pass over a Dynamo graph changes numbers: the graph before and after it, node by node.

Both graphs run in eager on the same inputs with the same random numbers, forward and backward.
The first node of the same name whose value differs is where the pass went wrong; when all values
agree, the last node whose gradient differs; then an input that is not written any more. Knows
graphs; what is a difference at all is the caller's number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner.capture.provenance import module_of
from sgplan.planner.capture.rewrite import Rewritten

_SEED = 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """Where two graphs part.

    Attributes:
        op: as the graph calls it.
        module: whose forward called it, in the unwrapped model.
        how: what differs, in words.
    """

    op: str
    module: str
    how: str


@dataclass(slots=True)
class _Ran:
    """One graph's run.

    Attributes:
        values, gradients: of its nodes, by name.
        written: its inputs afterwards, by name.
    """

    values: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    gradients: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    written: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])


class _Recording(fx.Interpreter):
    def __init__(self, gm: fx.GraphModule, ran: _Ran) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self._ran = ran
        self.live: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and n.op not in ("placeholder", "output"):
            self._ran.values[n.name] = value.detach().clone()
            if value.requires_grad:
                self.live[n.name] = value
        return value


def suspect(
    before: Rewritten,
    after: Rewritten,
    inputs: Sequence[Any],
    modules: Collection[str],
    forward: float,
    gradient: float,
) -> Suspect | None:
    """Where a pass changed what its graph computes; None when it did not.

    Args:
        inputs: what Dynamo gave the graph.
        modules: module paths of the unwrapped model.
        forward, gradient: relative differences that are allowed.
    """
    old, new = _run(before, inputs), _run(after, inputs)
    nodes = {node.name: node for node in after.gm.graph.nodes}
    gone = {node.name: node for node in before.gm.graph.nodes}
    for name in [n for n in gone if n in old.values and n in new.values]:
        if _differs(old.values[name], new.values[name], forward):
            blamed = _made_by_pass(nodes[name], gone) or nodes[name]
            module = module_of(blamed, modules) or module_of(nodes[name], modules)
            return Suspect(_op(blamed), module, f"`{name}` has another value after the pass")
    for name in _written_otherwise(old, new, forward):
        writer = next((n for n in gone.values() if n.name not in nodes and _names(n, name)), None)
        op = "" if writer is None else _op(writer)
        place = "" if writer is None else module_of(writer, modules)
        return Suspect(op, place, f"`{name}` is not written as before")
    # Inside of a graph a pass may have other gradients, such as scaled ones.
    given = [node.name for node in gone.values() if node.op == "placeholder"]
    if not any(_other_gradient(name, old, new, gradient) for name in given):
        return None
    for name in reversed([n for n in gone if n in old.gradients]):
        if name not in nodes or not _other_gradient(name, old, new, gradient):
            continue
        how = "has another gradient" if name in new.gradients else "has no gradient"
        added = next((user for user in nodes[name].users if user.name not in gone), None)
        blamed = added or _made_by_pass(nodes[name], gone) or nodes[name]
        module = module_of(blamed, modules) or _module_below(nodes[name], modules)
        return Suspect(_op(blamed), module, f"`{name}` {how} after the pass")
    return None


def _run(graph: Rewritten, inputs: Sequence[Any]) -> _Ran:
    ran = _Ran()
    given = [_copy(value) for value in (*inputs, *graph.inputs)]
    recording = _Recording(graph.gm, ran)
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(_SEED)
        outputs = list(_tensors(recording.run(*given)))
        losses = [_weighted(value) for value in outputs if value.requires_grad]
    names = [node.name for node in graph.gm.graph.nodes if node.op == "placeholder"]
    tensors = {n: v for n, v in zip(names, given, strict=True) if isinstance(v, torch.Tensor)}
    ran.written = {name: value.detach() for name, value in tensors.items()}
    live = {name: value for name, value in tensors.items() if value.requires_grad} | recording.live
    if losses and live:
        # Not `backward`, which belongs to the script's steps.
        loss = torch.stack(losses).sum()
        found = torch.autograd.grad(loss, list(live.values()), allow_unused=True)
        pairs = zip(live, found, strict=True)
        ran.gradients = {name: gradient for name, gradient in pairs if gradient is not None}
    return ran


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _weighted(value: torch.Tensor) -> torch.Tensor:
    """A number that every element has its own part in."""
    weights = torch.linspace(0.5, 1.5, value.numel(), device=value.device).reshape(value.shape)
    return (value.float() * weights).sum()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)


def _differs(one: torch.Tensor, other: torch.Tensor, allowed: float) -> bool:
    """Whether two values differ by more than is allowed of the largest finite one.

    What both have alike is no difference: minus infinity of a mask, or NaN.
    """
    if one.shape != other.shape:
        return True
    left, right = _wide(one), _wide(other)
    apart = ~((left == right) | (left.isnan() & right.isnan()))
    if not bool(apart.any()):
        return False
    distance = (left - right).abs()[apart].max()
    scale = left.abs()[left.isfinite()].max() if bool(left.isfinite().any()) else 0.0
    return not bool(distance <= allowed * scale)


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.dtype.is_complex else torch.float64)


def _other_gradient(name: str, old: _Ran, new: _Ran, allowed: float) -> bool:
    one, other = old.gradients.get(name), new.gradients.get(name)
    if one is None:
        return False
    return other is None or _differs(one, other, allowed)


def _written_otherwise(old: _Ran, new: _Ran, allowed: float) -> list[str]:
    return [
        name
        for name, value in old.written.items()
        if name in new.written and _differs(value, new.written[name], allowed)
    ]


def _made_by_pass(node: fx.Node, gone: Collection[str]) -> fx.Node | None:
    """The nearest node that the pass added and that this one reads."""
    waiting, seen = list(node.all_input_nodes), set[fx.Node]()
    while waiting:
        found = waiting.pop(0)
        if found.op == "placeholder" or found in seen:
            continue
        seen.add(found)
        if found.name in gone:
            continue
        if "getitem" not in str(found.target):
            return found
        waiting += found.all_input_nodes
    return None


def _names(node: fx.Node, name: str) -> bool:
    return any(each.name == name for each in node.all_input_nodes)


def _module_below(node: fx.Node, modules: Collection[str]) -> str:
    return next((found for u in node.users if (found := module_of(u, modules))), "")


def _op(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    return getattr(node.target, "__name__", str(node.target)).strip("_")
