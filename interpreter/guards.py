"""The guards of one rank: which hold for a module, what they cost, and what is said of every miss.

A miss is a value that no compiled variant holds for: one that a guard of the plan did not allow, or
one that Dynamo found by itself. Both become the same event. How a guarded call chooses its variant
is in `guarded.py`.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Guard, GuardPath, Pad
from sgplan.interpreter import events
from sgplan.interpreter.arguments import Argument, NotThere
from sgplan.interpreter.cutting import Cutting
from sgplan.interpreter.guard_values import reader
from sgplan.interpreter.places import script_line
from sgplan.interpreter.recompile_reasons import causes
from sgplan.interpreter.roots import Root
from sgplan.planner import guard_lines, torch_api
from sgplan.planner.guard_lines import spelled

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from sgplan.interpreter.rank import Rank


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

    cls: str
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
        compiles: the same by guard, all captured modules together.
        cutting: takes padded rows off what leaves a graph.
        call_code: of the function whose locals `module`, `args` and `kwargs` are those of a
            captured call.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.steps = rank.steps
        self._asked: set[str] = set()
        self._open: _Open | None = None
        self.recompiles = 0
        self.cutting = Cutting(any(isinstance(g.otherwise, Pad) for g in rank.plan.guards))
        self.compiles: Counter[str] = Counter()
        self.call_code: CodeType | None = None

    # --- which hold ------------------------------------------------------------------------------

    @property
    def any(self) -> bool:
        return bool(self._rank.plan.guards)

    def of(self, module: nn.Module) -> tuple[Guard, ...]:
        """The guards for a captured module; from now on they count as asked."""
        found = guard_lines.holding(self._rank.plan, self._rank.name_of(module))
        self._asked.update(guard.address for guard in found)
        return found

    def unasked(self, *, ended: bool = False) -> list[Diagnostic]:
        """Guards that no captured call came past although the model they are for was called.

        Args:
            ended: no call comes any more, so a model that was not called counts too.
        """
        if len(self._asked) == len(self._rank.plan.guards):
            return []
        pending = [g for g in self._rank.plan.guards if g.address not in self._asked]
        roots = self._rank.roots
        judged = [r for r in roots if ended or (r.called and not self._rank.capture_of(r).region)]
        held = {g.address for r in judged for g in self._holding(r)}
        known = {None, *(r.name for r in roots)}
        return [
            Diagnostic(
                "SG0725",
                f"no captured call came past `{guard.address}`",
                None if guard.span is None else Label(guard.span),
                notes=tuple(f"`{r.name}` runs on {r.engine}: {r.why}" for r in roots),
                help="let the plan or the script compile the module that it is for, or take it out",
            )
            for guard in pending
            if guard.address in held or (ended and guard.model not in known)
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
        self,
        module: nn.Module,
        misses: list[Miss],
        did: str,
        checks: list[Callable[[Any, Any], None]],
    ) -> Iterator[None]:
        """Around the first call of a variant: what is compiled in it is the cost of the misses.

        Args:
            checks: what looks at every graph that is compiled in it, with its inputs.
        """
        cls = type(module).__qualname__
        before, now = self._open, _Open(cls, misses, did, script_line(), checks=checks)
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
        if self._open is None:
            return
        for check in self._open.checks:
            check(gm, inputs)
        found = torch_api.compiling_frame()
        if found is not None and not torch_api.is_captured_call(found[0]):
            why = (
                f"a call of `{self._open.cls}` breaks into several graphs, and its variants share "
                "those of the functions behind the break: torch may join their sizes into one"
            )
            self._rank.once(events.NoteAdded, "guard", why)

    def compiled(self, seconds: float, why: str) -> None:
        """A compile is over; `why` is Dynamo's reason when it compiled something again."""
        if self._open is not None:
            self._open.seconds += seconds
        if why:
            self._found_by_dynamo(seconds, why)

    def _found_by_dynamo(self, seconds: float, why: str) -> None:
        call = self._call()
        module = None if call is None else call.f_locals["module"]
        cause = next(causes(why, of_call=_compiles_call_of(module)), None)
        if cause is None:
            return
        new = cause.new
        if new is None and cause.path is not None and call is not None:
            new = _met(cause.path, call)
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

    def step_compiled(self, region: str, seconds: float, why: str) -> None:
        """The step of an optimizer was compiled again, for which no guard can be written."""
        cause = next(causes(why, of_call=False), None)
        if cause is not None:
            watched, old = cause.watched, "other"
            if cause.old is not None:
                watched, old = watched.partition(" == ")[0], spelled(cause.old)
            self._rank.emit(
                events.GuardMissed,
                "",
                f"{region}: {watched}",
                old,
                "other",
                script_line(),
                "recompiled",
                seconds,
                cause.text,
                "",
            )

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
        frame = f"{type(module).__qualname__}.forward"
        name = self._rank.name_of(module) or ""
        self._rank.once(events.FallbackTaken, name, f"`{frame}` fell back to eager", why)

    def fixed(self, guard: Guard, module: nn.Module) -> Callable[[Any, Any], None]:
        """A check that the graph of a module's call leaves a size of a range open."""
        key, dim = guard.on.input, guard.on.dim
        sources = Argument.of(key, module).sources

        def check(gm: Any, inputs: Any) -> None:
            for node in gm.graph.nodes:
                value = node.meta.get("example_value")
                if (
                    node.op == "placeholder"
                    and torch_api.input_source(node) in sources
                    and isinstance(value, torch.Tensor)
                    and dim is not None
                    and torch_api.is_fixed(value.shape[dim])
                ):
                    self._not_one_graph(guard, value.shape[dim])

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


def _compiles_call_of(module: nn.Module | None) -> bool:
    """Whether Dynamo compiles a module's captured call now, or the `forward` that it reaches."""
    found = torch_api.compiling_frame()
    if module is None or found is None:
        return False
    forward = inspect.unwrap(module.forward)
    return torch_api.is_captured_call(found[0]) or found[0] is getattr(forward, "__code__", None)


def _met(path: GuardPath, call: FrameType) -> Any:
    """What a captured call has at a path, None when it cannot be told."""
    try:
        read = reader(path, call.f_locals["module"])
        return read(call.f_locals["args"], call.f_locals["kwargs"])
    except NotThere:
        return None
