"""The planner's functions as plain values, so that this folder imports none of its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.grammar.plan import Capture, Plan
from sgplan.planner.facts import Facts, RootFact
from sgplan.planner.program import Bucket, Program
from sgplan.planner.recompute import Request
from sgplan.planner.rules import Rule


@dataclass(frozen=True, slots=True)
class Planner:
    """What a rank asks of the planner, wired in by `sgplan.attach`.

    Attributes:
        lower: plan and facts to a legal program.
        contract: the lines ranks must agree on for one root.
        difference: the first difference of two contracts, in words.
        digest: of contract lines.
        overlap: what `overlap = required` objects to, judged on captured graphs.
        digests: of what a program was made from, by name.
        selectors: selectors of the plan that match nothing in what was captured.
        rules: the fusion rules for one root.
        recomputes: what the backward of one root computes again.
        missed: what the compiler did not follow of rules and `recompute` blocks.
        miscounted: rules with another number of sites than the plan expects, and blocks that change
            nothing.
        settings: of Inductor under a `capture` block on a device.
        device: settings of the plan that its device cannot follow.
        stale: what differs from the artefact being applied; called with (expect, rank, digests).
        part: a rank's part of the artefact as bytes.
    """

    lower: Callable[[Plan, Facts], Program]
    contract: Callable[[Plan, Facts, RootFact, Sequence[Bucket]], list[str]]
    difference: Callable[[Sequence[str], Sequence[str]], str]
    digest: Callable[[Iterable[str]], str]
    overlap: Callable[[Plan, Facts, Program], list[Diagnostic]]
    digests: Callable[[Program, Facts], dict[str, str]]
    selectors: Callable[[Plan, Facts], list[Diagnostic]]
    rules: Callable[[Plan, str], tuple[Rule, ...]]
    recomputes: Callable[[Plan, str], tuple[Request, ...]]
    missed: Callable[[Plan, Facts], list[Diagnostic]]
    miscounted: Callable[[Plan, Facts], list[Diagnostic]]
    settings: Callable[[Capture, str], dict[str, object]]
    device: Callable[[Plan], list[Diagnostic]]
    stale: Callable[[Any, int, dict[str, str]], list[Diagnostic]]
    part: Callable[[Program, Facts], bytes]
