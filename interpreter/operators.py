"""Custom operators that the plan admits: registered, traceable, and what they say they are.

Registration and fake are looked at before the first compile; the op itself on the arguments of its
first call, which come from running the captured graph once up to there, on copies. Each usual
fault has a diagnostic of its own, with the line of code that is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx
from torch import library
from torch.utils import _pytree as pytree

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Operator
from sgplan.interpreter import events
from sgplan.planner import torch_api

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank

_MODULE = library.__name__  # as a user has to type it


class Operators:
    """The `operator` blocks of one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._declared = False
        self._probed: set[str] = set()
        self._broken_at: set[str] = set()

    def declared(self) -> None:
        """Before the first compile: every op is registered and has a fake implementation."""
        if self._declared:
            return
        self._declared = True
        found = (_undeclared(block, self._rank.plan.source) for block in self._rank.plan.operators)
        self._rank.report([problem for problem in found if problem is not None])
        for name, op in torch_api.ops_without_fake().items():
            torch_api.break_graph_at(op)
            self._broken_at.add(name)

    def advice(self, reason: str) -> str:
        """What to add for an op at which a graph broke; empty when the reason names none."""
        name = next((name for name in self._broken_at if name in reason), None)
        return "" if name is None else f"`{name}` has no fake: {_fake_cure(name)}"

    def probe(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        """Check the ops of a Dynamo graph that were not checked yet, on its real inputs."""
        wanted = {b.op: b for b in self._rank.plan.operators if b.op not in self._probed}
        calls = {node: b for node in gm.graph.nodes if (b := wanted.get(_called(node))) is not None}
        if not calls:
            return
        self._probed |= {block.op for block in calls.values()}
        if any(map(torch_api.is_fake, inputs)) or any(map(_communicates, gm.graph.nodes)):
            for block in calls.values():
                text = f"`{block.op}` was not checked: its first call has no arguments to check on"
                self._rank.once(events.NoteAdded, "operator", text)
            return
        problems: list[Diagnostic] = []
        with torch.no_grad(), torch.random.fork_rng():
            _Probe(gm, calls, problems).run(*map(_copied, inputs))
        self._rank.report(problems)


class _Probe(fx.Interpreter):
    """Runs a graph and checks the ops in it."""

    def __init__(
        self, gm: fx.GraphModule, calls: dict[fx.Node, Operator], problems: list[Diagnostic]
    ) -> None:
        super().__init__(gm)
        self._calls = dict(calls)
        self._problems = problems

    def run_node(self, n: fx.Node) -> Any:
        block = self._calls.pop(n, None)
        if block is not None:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self._problems += _faults(block, _overload(n.target), args, kwargs)
        return super().run_node(n)


def _copied(value: Any) -> Any:
    """Inputs may be written to by the graph: buffers, in-place ops."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _communicates(node: fx.Node) -> bool:
    return "c10d" in str(node.target)


def _called(node: fx.Node) -> str:
    """`library::op` of a node that calls a registered op."""
    target = _overload(node.target) if node.op == "call_function" else None
    return "" if target is None else target._schema.name.replace(".", "::", 1)


def _overload(target: Any) -> torch._ops.OpOverload | None:
    if isinstance(target, torch._ops.OpOverload):
        return target
    if isinstance(target, torch._ops.OpOverloadPacket):
        return getattr(target, target.overloads()[0])
    return None


# --- what can be wrong ---------------------------------------------------------------------------


def _undeclared(block: Operator, source: str) -> Diagnostic | None:
    packet = torch_api.registered_op(block.op)
    if packet is None:
        return _unregistered(block, source)
    if torch_api.has_fake(getattr(packet, packet.overloads()[0])):
        return None
    return Diagnostic(
        "SG0610",
        f"`{block.op}` has no fake implementation",
        _label(block, "op"),
        notes=("the graph breaks at every call of it",),
        help=_fake_cure(block.op),
        severity="error" if block.fake == "required" else "note",
    )


def _fake_cure(name: str) -> str:
    return (
        f'add `@{_MODULE}.register_fake("{name}")` to a function that returns '
        "`torch.empty_like(…)` or the like, next to the op"
    )


def _unregistered(block: Operator, source: str) -> Diagnostic:
    space, _, name = block.op.partition("::")
    notes: tuple[str, ...] = ()
    cure = f'register it: `@{_MODULE}.custom_op("{block.op}", mutates_args=())`'
    if block.from_ is not None:
        path = Path(block.from_)
        file = path if path.is_absolute() else Path(source).parent / path
        loaded = any(_is_file(module, file) for module in list(sys.modules.values()))
        if not file.exists():
            notes = (f"`{block.from_}` does not exist beside the plan",)
            cure = "name the file that registers it in `from`"
        elif loaded:
            notes = (f"`{block.from_}` was imported and does not register it",)
        else:
            notes = (f"`{block.from_}` was not imported by the script",)
            cure = f"add `import {file.stem}` to the script, before the model is built"
    if known := torch_api.op_names(space):
        notes = (*notes, f"`{space}` has {', '.join(f'`{each}`' for each in known[:8])}")
    return Diagnostic(
        "SG0609",
        f"no op `{name}` is registered in library `{space}`",
        _label(block, "op"),
        notes=notes,
        help=cure,
    )


def _is_file(module: Any, file: Path) -> bool:
    found = getattr(module, "__file__", None)
    return found is not None and Path(found).resolve() == file.resolve()


def _faults(
    block: Operator, op: torch._ops.OpOverload | None, args: Any, kwargs: Any
) -> list[Diagnostic]:
    """What is wrong with an op on these arguments: its fake first, because it explains more."""
    if op is None:
        return []
    difference = _wrong_fake(op, args, kwargs)
    if difference:
        return [
            Diagnostic(
                "SG0611",
                f"the fake of `{block.op}` is wrong: {difference}",
                _label(block, "op"),
                help="return from the function under `register_fake` what the op really makes",
            )
        ]
    if block.check == "off":
        return []
    try:
        library.opcheck(op, *pytree.tree_map(_copied, (args, kwargs)))
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return [
            Diagnostic(
                "SG0612",
                f"`{block.op}` does not pass `opcheck`",
                _label(block, "op"),
                notes=tuple(lines[:4]),
                help="name what it writes in `mutates_args`, return no argument as a result, and "
                f"register its backward with `{_MODULE}.register_autograd`",
            )
        ]
    return []


def _wrong_fake(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> str:
    """How fake and real result differ on these arguments, in words; empty when they agree."""
    mode = torch_api.fake_mode()
    fakes = pytree.tree_map(
        lambda v: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v, (args, kwargs)
    )
    try:
        with mode:
            promised = op(*fakes[0], **fakes[1])
    except Exception as error:
        return str(error).strip().splitlines()[0]
    real_args, real_kwargs = pytree.tree_map(_copied, (args, kwargs))
    made = op(*real_args, **real_kwargs)
    pairs = list(zip(pytree.tree_leaves(promised), pytree.tree_leaves(made), strict=False))
    if len(pytree.tree_leaves(promised)) != len(pytree.tree_leaves(made)):
        return "another number of results"
    return next((text for fake, real in pairs if (text := _unlike(fake, real))), "")


def _unlike(fake: Any, real: Any) -> str:
    if not isinstance(real, torch.Tensor) or not isinstance(fake, torch.Tensor):
        return ""
    for what, promised, made in (
        ("shape", tuple(fake.shape), tuple(real.shape)),
        ("dtype", fake.dtype, real.dtype),
        ("strides", fake.stride(), real.stride()),
    ):
        if promised != made:
            return f"it promises {what} {promised}, the op makes {made}"
    return ""


def _label(block: Operator, name: str) -> Label | None:
    span = block.origin(name) or block.span
    return None if span is None else Label(span)
