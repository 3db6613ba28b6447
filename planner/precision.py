"""Which `precision` blocks hold at a step, and the distinct stages that they make.

Pure: plan in, clauses out. Where the casts go is found on the graph (`capture/casts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.literals import Interval
from sgplan.grammar.plan import Dynamic, Plan, Precision, Selector
from sgplan.planner.facts import Facts, RootFact
from sgplan.planner.globs import covers
from sgplan.planner.select import Op, selects

Compute = Literal["as_written", "fp32", "bf16", "fp16"]
LossScale = float | Dynamic | None


@dataclass(frozen=True, slots=True)
class Setting:
    """What one block asks of a graph; equal settings make equal graphs.

    Attributes:
        compute: format of the calls that it selects.
        match: of which a call must have an op; empty for every call.
        inside, outside: module globs.
        keep: selectors of ops that stay in fp32.
        priority: the higher one has an op that two blocks take.
        address: `precision.main`; no part of what the setting means.
    """

    compute: Compute
    match: tuple[Selector, ...] = ()
    inside: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    keep: tuple[Selector, ...] = ()
    priority: int = 0
    address: str = field(default="", compare=False, repr=False)

    def takes(self, op: Op, module: str) -> bool:
        """Whether the block has a say in an op of a module."""
        if self.inside and not any(covers(glob, module) for glob in self.inside):
            return False
        if any(covers(glob, module) for glob in self.outside):
            return False
        return not self.match or any(_fits(each, op, module) for each in self.match)

    def keeps(self, op: Op, module: str) -> bool:
        """Whether `keep_fp32` names an op of a module."""
        return any(_fits(each, op, module) for each in self.keep)


def _fits(selector: Selector, op: Op, module: str) -> bool:
    if selector.glob is not None and not covers(selector.glob, module):
        return False
    return selector.op is None or selects(selector.op, op)


Settings = tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one root.

    Attributes:
        blocks: those of the root, higher priority first, then as written.
    """

    blocks: tuple[Precision, ...]

    def at(self, step: int) -> Settings:
        """What holds at a step, higher priority first; empty where nothing changes the graph."""
        held = [b for b in self.blocks if b.holds_at(step)]
        if all(block.compute == "as_written" for block in held):
            return ()
        return tuple(map(_setting, held))

    def distinct(self) -> tuple[Settings, ...]:
        """Every stage once, in the order of its first step."""
        return tuple(dict.fromkeys(self.at(step) for step in begins_of(self.blocks)))

    def steps_of(self, settings: Settings) -> tuple[Interval, ...]:
        """Where a stage holds, ascending."""
        begins = begins_of(self.blocks)
        found: list[Interval] = []
        for low, after in zip(begins, (*begins[1:], None), strict=True):
            if self.at(low) != settings:
                continue
            high = None if after is None else after - 1
            if found and found[-1].high == low - 1:
                found[-1] = Interval(found[-1].low, high)
            else:
                found.append(Interval(low, high))
        return tuple(found)


def begins_of(blocks: Iterable[Precision]) -> list[int]:
    """The first step of each run of steps with the same blocks, 0 first."""
    begins = {0}
    for block in blocks:
        begins.add(block.steps.low or 0)
        if block.steps.high is not None:
            begins.add(block.steps.high + 1)
    return sorted(begins)


def stages_of(plan: Plan, root: str | None) -> Stages:
    """The stages for one root; without blocks there is one that changes nothing."""
    blocks = [block for block in plan.precisions if block.model in (None, root)]
    blocks.sort(key=lambda b: (-(b.priority or 0), b.span.start if b.span else 0))
    return Stages(tuple(blocks))


def loss_scale_at(plan: Plan, root: str, step: int) -> LossScale:
    """The scale that a plan asks for in one step of a root; None without one.

    Args:
        step: the first is 0.
    """
    stages = plan.precisions_at(root, step)
    for stage in stages:
        if stage.loss_scale == "off":
            return None
        if not isinstance(stage.loss_scale, str):
            return stage.loss_scale
    return Dynamic() if any(stage.computes_fp16 for stage in stages) else None


def ever_scaled(plan: Plan, root: str) -> bool:
    """Whether the loss of a root is scaled in any step."""
    begins = begins_of(stages_of(plan, root).blocks)
    return any(loss_scale_at(plan, root, step) is not None for step in begins)


def idle(plan: Plan, facts: Facts) -> list[Diagnostic]:
    """SG0734 for every block that has a root without graphs of the plan."""
    return [
        _idle(block, root)
        for root in facts.roots
        if root.engine != "inductor" or root.path == "stock"
        for block in stages_of(plan, root.name).blocks
        if block.changes_graph
    ]


def _idle(block: Precision, root: RootFact) -> Diagnostic:
    names = ("compute",) if block.compute != "as_written" else ("loss_scale",)
    span = next((s for name in names if (s := block.origin(name)) is not None), block.span)
    return Diagnostic(
        "SG0734",
        f"`{block.address}` changes nothing in `{root.name}`",
        None if span is None else Label(span, "carried out in captured graphs"),
        notes=(f"`{root.name}` runs on {_where(root)}: {root.why}",),
        help="let the plan or the script compile the model, or take the block out",
    )


def _where(root: RootFact) -> str:
    return "stock DDP" if root.path == "stock" else root.engine


def _setting(block: Precision) -> Setting:
    match = block.match.steps[0] if block.match is not None else ()
    return Setting(
        block.compute,
        match,
        block.in_,
        block.except_,
        block.keep_fp32,
        block.priority or 0,
        block.address,
    )


@dataclass(frozen=True, slots=True)
class Clash:
    """An op that two settings of one priority take.

    Attributes:
        first, second: addresses of their blocks, in the order of the plan.
    """

    op: str
    module: str
    first: str
    second: str


def clash_in(settings: Settings, ops: Iterable[tuple[Op, str]]) -> Clash | None:
    """The first op, with its module, that two settings take and no priority gives to one."""
    for op, module in ops:
        taking = [setting for setting in settings if setting.takes(op, module)]
        if len(taking) > 1 and taking[0].priority == taking[1].priority:
            return Clash(op.op, module, taking[0].address, taking[1].address)
    return None


def clashing(plan: Plan, clash: Clash) -> Diagnostic:
    """SG0733 for two blocks that claim one op."""
    spans = {block.address: block.span for block in plan.precisions}
    first, second = spans.get(clash.first), spans.get(clash.second)
    return Diagnostic(
        "SG0733",
        f"`{clash.first}` and `{clash.second}` both claim `{clash.op}` of "
        f"`{clash.module or 'the model itself'}`",
        None if second is None else Label(second, "claimed here too"),
        () if first is None else (Label(first, "claimed here"),),
        notes=("they hold for the same step",),
        help="write a `priority` in one of them, or narrow it with `in` or `except`",
    )
