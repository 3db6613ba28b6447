"""Which `precision` blocks hold at a step, and the distinct stages that they make.

Pure: plan in, clauses out. Where the casts go is found on the graph (`capture/casts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sgplan.grammar.plan import Plan, Precision, Selector
from sgplan.planner.globs import covers
from sgplan.planner.select import Op, selects

Compute = Literal["as_written", "fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What one block asks of a graph; equal settings make equal graphs.

    Attributes:
        compute: format of the calls that it selects.
        match: of which a call must have an op; empty for every call.
        inside, outside: module globs.
        keep: selectors of ops that stay in fp32.
    """

    compute: Compute
    match: tuple[Selector, ...] = ()
    inside: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    keep: tuple[Selector, ...] = ()

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
        held = [b for b in self.blocks if _holds(b, step)]
        if all(block.compute == "as_written" for block in held):
            return ()
        return tuple(map(_setting, held))

    def distinct(self) -> tuple[Settings, ...]:
        """Every stage once, in the order of its first step."""
        begins = {0}
        for block in self.blocks:
            begins.add(block.steps.low or 0)
            if block.steps.high is not None:
                begins.add(block.steps.high + 1)
        return tuple(dict.fromkeys(self.at(step) for step in sorted(begins)))


def stages_of(plan: Plan, root: str | None) -> Stages:
    """The stages for one root; without blocks there is one that changes nothing."""
    blocks = [block for block in plan.precisions if block.model in (None, root)]
    blocks.sort(key=lambda b: (-(b.priority or 0), b.span.start if b.span else 0))
    return Stages(tuple(blocks))


def needing_graph(plan: Plan, root: str | None) -> str:
    """The address of a block that needs a graph; empty when none does."""
    blocks: Sequence[Precision] = stages_of(plan, root).blocks
    return next((block.address for block in blocks if block.compute != "as_written"), "")


def _holds(block: Precision, step: int) -> bool:
    return step in block.steps


def _setting(block: Precision) -> Setting:
    match = block.match.steps[0] if block.match is not None else ()
    return Setting(block.compute, match, block.in_, block.except_, block.keep_fp32)
