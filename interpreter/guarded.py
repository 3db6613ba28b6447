"""A captured module's call under guards: one compiled variant for each declared value or range.

Each variant has a code object of its own, so Dynamo neither joins two of them into a dynamic one
nor counts them towards one recompile limit. Dynamo's own guards stay on inside every variant: a
value can choose the wrong variant only at the price of a recompile, never of a stale result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.plan import Guard, Interval, Pad, RealInterval
from sgplan.interpreter.arguments import NotThere
from sgplan.interpreter.cutting import Cut
from sgplan.interpreter.guard_values import Read, reader, sources
from sgplan.interpreter.guards import Guards, Miss
from sgplan.interpreter.padding import LEAST, Padding, Tracer
from sgplan.planner import guard_lines
from sgplan.planner.capture.rows import NotProved
from sgplan.planner.guard_lines import spelled

Call = Callable[..., Any]
# (name of the frame, what varies between its calls) -> the compiled call
CompileVariant = Callable[[str, Mapping[str, Sequence[bool] | None]], Call]


class _InRange:
    """Stands in a variant's key for every value of a range."""

    def __repr__(self) -> str:
        return "range"


IN_RANGE = _InRange()


class Watch:
    """One guard of one captured module.

    Attributes:
        guard: of the plan.
        allowed: values of a list, and those met beyond it that were compiled for.
    """

    def __init__(self, guard: Guard, module: nn.Module) -> None:
        self.guard = guard
        self.read: Read = reader(guard.on, module)
        self.allowed: list[Any] = []
        allow = guard.allow
        self._range = allow if isinstance(allow, Interval | RealInterval) else None
        self._apart = guard_lines.apart(guard)
        self._switches = guard.on.what in ("value", "attribute")
        if isinstance(allow, tuple):
            self.allowed = [self._meant(value) for value in allow]
        self._open = allow is None

    def _meant(self, value: Any) -> Any:
        """`on` and `off` are a switch's values."""
        return {"on": True, "off": False}.get(value, value) if self._switches else value

    def key(self, value: Any) -> Any:
        """Equal for values of one variant."""
        if self._range is not None and self.varies(value):
            return IN_RANGE
        return (type(value), value) if self._switches else value

    def varies(self, value: Any) -> bool:
        """Whether the variant of this value holds for the whole range."""
        if self._range is None or type(value) not in (int, float):
            return False
        return value in self._range and value not in self._apart

    def allows(self, value: Any) -> bool:
        """Whether a variant is declared for this value."""
        if self._open and value is not None:
            self._open = False
            self.allowed = [value]
        if value is None or self.varies(value) or value in self._apart:
            return True
        each = value if isinstance(value, tuple) else (value,)
        return all(self._has(v) for v in each) or self._has(value)

    def _has(self, value: Any) -> bool:
        # A whole number of the list stands for the fraction too; `off` is no number.
        kinds = (float, int) if type(value) is float else (type(value),)
        return any(type(known) in kinds and known == value for known in self.allowed)

    def miss(self, old: Any, new: Any) -> Miss:
        """The miss of a value, in words."""
        before = guard_lines.declared(self.guard) if old is None else spelled(old)
        plain = [v for known in self.allowed for v in (known if type(known) is tuple else [known])]
        return Miss(
            self.guard, before, spelled(new), guard_lines.with_value(self.guard, plain, new)
        )


class Guarded:
    """The call of one captured module.

    Args:
        guards: of the rank.
        module: captured.
        compile: makes a variant.
        tracer: makes what traces a call for a proof.
        plain: the call without guards, where none holds for the module.
    """

    _made = 0

    def __init__(
        self,
        guards: Guards,
        module: nn.Module,
        compile: CompileVariant,
        tracer: Tracer,
        plain: Call,
    ) -> None:
        self._guards = guards
        self._steps = guards.steps
        self._module = module
        self._compile = compile
        self._tracer = tracer
        self._plain = plain
        self._watches: list[Watch] | None = None
        self._ready: dict[Any, Call] = {}
        self._last: tuple[Any, ...] | None = None
        self._paddings: dict[str, Padding] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watches = self._watches
        if watches is None:
            watches = self._resolve()
        if not watches:
            return self._plain(*args, **kwargs)
        began = perf_counter()
        try:
            values = tuple([watch.read(args, kwargs) for watch in watches])
            before, self._last = self._last, values
            parts = [watch.key(value) for watch, value in zip(watches, values, strict=True)]
        except NotThere as error:
            return self._lost(watches, error, args, kwargs)
        # Gradients and the mode of the model are compiled apart whatever the plan says.
        key = (*parts, torch.is_grad_enabled(), self._module.training)
        call = self._ready.get(key)
        if call is None:
            return self._meet(key, values, before, args, kwargs)
        self._steps.own += perf_counter() - began
        return call(*args, **kwargs)

    def _resolve(self) -> list[Watch]:
        """At the first call, when it is known which root the module is."""
        self._watches = []
        for guard in self._guards.of(self._module):
            try:
                self._watches.append(Watch(guard, self._module))
            except NotThere as error:
                self._guards.not_there(guard, str(error))
        return self._watches

    def _lost(
        self, watches: list[Watch], error: NotThere, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Say which guard does not find its value; ends the rank."""
        for watch in watches:
            try:
                watch.read(args, kwargs)
            except NotThere as found:
                self._guards.not_there(watch.guard, str(found))
        raise error

    # --- a key that was not met before -----------------------------------------------------------

    def _meet(
        self,
        key: tuple[Any, ...],
        values: tuple[Any, ...],
        before: tuple[Any, ...] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        assert self._watches is not None
        old = before or (None,) * len(values)
        missed = [
            (watch, watch.miss(was, value), value)
            for watch, value, was in zip(self._watches, values, old, strict=True)
            if not watch.allows(value)
        ]
        for watch, miss, _ in missed:
            if watch.guard.otherwise == "error":
                self._stop(watch, miss)
        eager = [m for w, m, _ in missed if w.guard.otherwise == "eager"]
        if eager:
            self._guards.report(eager, "ran eagerly")
            return self._module._call_impl(*args, **kwargs)
        padded = [(w, m, v) for w, m, v in missed if isinstance(w.guard.otherwise, Pad)]
        if padded:
            return self._pad(padded, args, kwargs)
        misses = [miss for _, miss, _ in missed]
        for watch, miss, _ in missed:
            if spent := self._spent(watch):
                return self._overdrawn(watch, misses, spent, miss, args, kwargs)
        for watch, _, value in missed:
            self._guards.compiles[watch.guard.address] += 1
            watch.allowed += value if isinstance(value, tuple) else [value]
        self._guards.recompiles += bool(missed)
        return self._first_call(key, values, misses, args, kwargs)

    def _first_call(
        self,
        key: tuple[Any, ...],
        values: tuple[Any, ...],
        misses: list[Miss],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make the variant and call it; what this compiles is the cost of the misses."""
        assert self._watches is not None
        varying: dict[str, Sequence[bool] | None] = {}
        checks: list[Callable[[Any, Any], None]] = []
        for watch, value in zip(self._watches, values, strict=True):
            if isinstance(watch.guard.otherwise, Pad):
                self._padding(watch).check(value, args, kwargs)
            if watch.varies(value):
                on = watch.guard.on
                varying |= sources(on, self._module, args, kwargs, value)
                if on.what == "shape" and on.input != "*":
                    checks.append(self._guards.fixed(watch.guard, self._module))
        Guarded._made += 1
        frame = f"{type(self._module).__qualname__}_call_v{Guarded._made}"
        call = self._ready[key] = self._compile(frame, varying)
        with self._guards.compiling(self._module, misses, "recompiled", checks):
            return call(*args, **kwargs)

    # --- what cannot be compiled for -------------------------------------------------------------

    def _stop(self, watch: Watch, miss: Miss) -> None:
        guard = watch.guard
        self._guards.report([miss], "stopped")
        self._guards.refuse(
            _refusal(
                "SG0721",
                guard,
                ("otherwise", "allow"),
                f"`{guard.on}` is {miss.new}, which `{guard.address}` does not allow",
                f"it declares {guard_lines.declared(guard)}",
                f"write `{miss.line}`",
            )
        )

    def _spent(self, watch: Watch) -> tuple[str, str] | None:
        """What is spent, and what to raise."""
        guard = watch.guard
        if self._guards.compiles[guard.address] >= guard.budget:
            return f"the budget of `{guard.address}`, {guard.budget}, is spent", "the budget"
        why = self._guards.spent()
        return (why, "`capture.recompiles`") if why else None

    def _overdrawn(
        self,
        watch: Watch,
        misses: list[Miss],
        spent: tuple[str, str],
        miss: Miss,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        guard = watch.guard
        why, raised = spent
        if guard.spent == "error":
            self._guards.report(misses, "stopped")
            self._guards.refuse(
                _refusal(
                    "SG0722",
                    guard,
                    ("budget",),
                    f"{why}, and `{guard.on}` is {miss.new}",
                    f"compiled for: {', '.join(map(spelled, watch.allowed))}",
                    f"write `{miss.line}`, raise {raised}, or write `spent = eager`",
                )
            )
        self._guards.report(misses, "ran eagerly")
        self._guards.fell_back(self._module, why)
        return self._module._call_impl(*args, **kwargs)

    # --- padding ---------------------------------------------------------------------------------

    def _padding(self, watch: Watch) -> Padding:
        address = watch.guard.address
        if address not in self._paddings:
            self._paddings[address] = Padding(self._guards, watch.guard, self._module, self._tracer)
        return self._paddings[address]

    def _pad(
        self,
        missed: list[tuple[Watch, Miss, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Enlarge the inputs and call again with allowed sizes; what leaves the graph is cut."""
        if any(type(value) is int and value < LEAST for _, _, value in missed):
            self._guards.report([miss for _, miss, _ in missed], "ran eagerly")
            return self._module._call_impl(*args, **kwargs)
        cuts: list[Cut] = []
        # The proof for the first holds for the sizes of the others as the script has them, so the
        # batch, which varies least, comes last.
        for watch, miss, value in sorted(missed, key=_behind_batch, reverse=True):
            padding = self._padding(watch)
            target = padding.target(value, watch.allowed)
            if target is None:
                self._stop(watch, miss)
                raise AssertionError("a rank that is stopped does not go on")
            self._guards.report([miss], f"padded to {target}")
            (args, kwargs), cut = padding.enlarge(value, target, args, kwargs)
            cuts.append(cut)
        try:
            with self._guards.cutting.by(cuts):
                return self(*args, **kwargs)
        except NotProved as error:
            self._padding(missed[0][0]).refuse(str(error))
            raise


def _behind_batch(missed: tuple[Watch, Miss, Any]) -> tuple[bool, int]:
    """Where the watched dim stands; those counted from the end come behind the others."""
    dim = missed[0].guard.on.dim or 0
    return dim < 0, dim


def _refusal(
    code: str, guard: Guard, clauses: Sequence[str], message: str, note: str, cure: str
) -> Diagnostic:
    """An error at the first of the clauses that the guard writes, else at the guard."""
    span = next((s for name in clauses if (s := guard.origin(name)) is not None), guard.span)
    return Diagnostic(
        code, message, None if span is None else Label(span), notes=(note,), help=cure
    )
