"""The guards of one rank: which hold for a module, what they cost, and what is said of every miss.

A miss is a value that no compiled variant holds for: one that a guard of the plan did not allow, or
one that Dynamo found by itself. Both become the same event. How a guarded call chooses its variant
is in `guarded.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Guard, Pad
from sgplan.interpreter import events
from sgplan.interpreter.cutting import Cutting
from sgplan.interpreter.guard_values import NotThere, reader
from sgplan.interpreter.recompile_reasons import Cause, causes
from sgplan.interpreter.roots import Root, names_class
from sgplan.planner import guard_lines, torch_api
from sgplan.planner.guard_lines import spelled

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from sgplan.interpreter.rank import Rank

_OURS = ("torch", "sgplan", "contextlib")


@dataclass(slots=True)
class Miss:
    """One value that a guard of the plan did not expect.

    Attributes:
        old: what the call before had; of the first call what is allowed.
        line: what to write so that it is expected.
    """

    guard: Guard
    old: str
    new: str
    line: str


@dataclass(slots=True)
class _Open:
    """Misses whose call runs now, and the compiles in it."""

    misses: list[Miss]
    did: str
    where: str
    seconds: float = 0.0
    checks: list[Callable[[Any, Any], None]] = field(
        default_factory=list[Callable[[Any, Any], None]]
    )


class Guards:
    """What the guards of one rank share.

    Attributes:
        steps: the watch that own time is added up in.
        recompiles: compiles beyond what the plan allows, all guards together.
        cutting: takes padded rows off what leaves a graph.
        call_code: of the function whose locals `args` and `kwargs` are those of a captured call.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.steps = rank.steps
        self._asked: set[str] = set()
        self._open: _Open | None = None
        self.recompiles = 0
        self.cutting = Cutting(any(isinstance(g.otherwise, Pad) for g in rank.plan.guards))
        self.call_code: CodeType | None = None

    # --- which hold ------------------------------------------------------------------------------

    @property
    def any(self) -> bool:
        return bool(self._rank.plan.guards)

    def of(self, module: nn.Module) -> tuple[Guard, ...]:
        """The guards for a captured module; from now on they count as asked."""
        found = guard_lines.holding(self._rank.plan, self._name(module))
        self._asked.update(guard.address for guard in found)
        return found

    def _name(self, module: nn.Module) -> str | None:
        """Of the module's root; of one that has not trained yet the `model` block that means it."""
        root = self._rank.root_of(module)
        if root is not None:
            return root.name
        for model in self._rank.plan.models:
            if names_class(model.is_, type(module)):
                return model.label
        return None

    def unasked(self) -> list[Diagnostic]:
        """Guards that no call came past; none is passed over in silence."""
        held = {g.address for r in self._rank.roots for g in self._holding(r)}
        return [
            Diagnostic(
                "SG0725",
                f"no captured call came past `{guard.address}`",
                None if guard.span is None else Label(guard.span),
                notes=tuple(f"`{r.name}` runs on {r.engine}: {r.why}" for r in self._rank.roots),
                help="let the plan or the script compile the module that it is for, or take it out",
            )
            for guard in self._rank.plan.guards
            if guard.address not in self._asked and (guard.address in held or guard.model)
        ]

    def _holding(self, root: Root) -> tuple[Guard, ...]:
        return guard_lines.holding(self._rank.plan, root.name)

    # --- what is said ----------------------------------------------------------------------------

    def report(self, misses: Iterable[Miss], did: str) -> None:
        """Misses that cost no compile."""
        where = script_line()
        for miss in misses:
            self._say(miss, where, did, 0.0)

    def _say(self, miss: Miss, where: str, did: str, seconds: float) -> None:
        guard = miss.guard
        self._rank.emit(
            events.GuardMissed,
            guard.address,
            str(guard.on),
            miss.old,
            miss.new,
            where,
            did,
            seconds,
            f"`{guard.address}` allows {guard_lines.declared(guard).removeprefix('one for ')}",
            miss.line,
        )

    @contextmanager
    def compiling(
        self, misses: list[Miss], did: str, checks: list[Callable[[Any, Any], None]]
    ) -> Iterator[None]:
        """Around the first call of a variant: what is compiled in it is the cost of the misses.

        Args:
            checks: what looks at every graph that is compiled in it, with its inputs.
        """
        before, now = self._open, _Open(misses, did, script_line(), checks=checks)
        self._open = now
        try:
            yield
        finally:
            self._open = before
            for number, miss in enumerate(misses):
                # One compile serves all of them; its cost is counted once.
                self._say(miss, now.where, did, 0.0 if number else now.seconds)

    def graph(self, gm: Any, inputs: Any) -> None:
        """Dynamo has made a graph, which is about to be compiled."""
        if self._open is not None:
            for check in self._open.checks:
                check(gm, inputs)

    def compiled(self, root: Root | None, seconds: float, why: str) -> None:
        """A compile is over; `why` is Dynamo's reason when it compiled something again."""
        if self._open is not None:
            self._open.seconds += seconds
        if why:
            self._found_by_dynamo(root, seconds, why)

    def _found_by_dynamo(self, root: Root | None, seconds: float, why: str) -> None:
        cause = next(causes(why), None)
        if cause is None:
            return
        new = self._met(root, cause)
        old = "other" if cause.old is None else spelled(cause.old)
        line = ""
        if cause.path is not None:
            line = guard_lines.line_for(cause.path, cause.old, new)
        self._rank.emit(
            events.GuardMissed,
            "",
            cause.watched,
            old,
            "other" if new is None else spelled(new),
            cause.where or script_line(),
            "recompiled",
            seconds,
            cause.text,
            line,
        )

    def _met(self, root: Root | None, cause: Cause) -> Any:
        """The value that the failed guard met, None when it cannot be told."""
        if cause.new is not None or cause.path is None or root is None:
            return cause.new
        frame = self._call()
        if frame is None:
            return None
        try:
            read = reader(cause.path, root.module)
            return read(frame.f_locals["args"], frame.f_locals["kwargs"])
        except NotThere:
            return None

    def _call(self) -> FrameType | None:
        """The captured call that runs now."""
        frame = sys._getframe()
        while frame is not None and frame.f_code is not self.call_code:
            frame = frame.f_back
        return frame

    # --- errors ----------------------------------------------------------------------------------

    def refuse(self, diagnostic: Diagnostic) -> None:
        """Stop every rank, or warn where the call can go on."""
        self._rank.report([diagnostic])

    def not_there(self, guard: Guard, why: str) -> None:
        """The path leads nowhere in this script."""
        span = guard.origin("on")
        self.refuse(
            Diagnostic(
                "SG0724",
                f"{why}",
                None if span is None else Label(span),
                help="name something that the call has, or take the guard out",
            )
        )

    def spent(self) -> str:
        """That the run may not compile for a further value; empty when it may."""
        if self.recompiles >= (most := self._rank.capture_of(None).recompiles):
            return f"the {most} recompiles of the run (`capture.recompiles`) are spent"
        return ""

    def fell_back(self, module: nn.Module, why: str) -> None:
        root = self._rank.root_of(module)
        name = "" if root is None else root.name
        frame = f"{type(module).__qualname__}.forward"
        self._rank.once(events.FallbackTaken, name, f"`{frame}` fell back to eager", why)

    def fixed(self, guard: Guard) -> Callable[[Any, Any], None]:
        """A check that a graph leaves a size of a range open."""

        def check(gm: Any, inputs: Any) -> None:
            for node in gm.graph.nodes:
                value = node.meta.get("example_value")
                if node.op != "placeholder" or not isinstance(value, torch.Tensor):
                    continue
                found = next(causes(f"0/0: {torch_api.input_source(node)} == 0"), None)
                if found is None or found.path is None or found.path.input != guard.on.input:
                    continue
                if guard.on.dim is not None and torch_api.is_fixed(value.shape[guard.on.dim]):
                    self._not_one_graph(guard, value.shape[guard.on.dim])

        return check

    def _not_one_graph(self, guard: Guard, size: Any) -> None:
        span = guard.origin("allow")
        self.refuse(
            Diagnostic(
                "SG0726",
                f"the graph holds for `{guard.on}` = {size} only, and `{guard.address}` allows "
                f"{guard.allow}",
                None if span is None else Label(span, "a range is one variant"),
                notes=("code of the model uses the size as a number, which fixes it",),
                help=f"list the sizes, like `allow = [{size}]`",
            )
        )


def script_line() -> str:
    """`train.py:57`: the innermost line that is neither torch's nor ours; empty without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _OURS and not frame.f_code.co_filename.startswith("<"):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
