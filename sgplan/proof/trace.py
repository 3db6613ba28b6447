"""Who caused the first difference: the pass, by bisection; then the op, module and clause.

The passes that can change numbers stand in one order (`planner.numerics`), so the plan with the
first k of them can always run. Under none of them a run must equal the plain one; under all it
does not; the first k at which it does not any more is the culprit's. That takes at most
log2(n) + 1 short runs, whose graphs are in the caches already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgpack

from sgplan.planner.facts import RootFact
from sgplan.planner.numerics import NumericChange
from sgplan.planner.program import Bucket
from sgplan.proof.findings import Comparison, Culprit, Difference
from sgplan.proof.jobs import Done


@dataclass(frozen=True, slots=True)
class Traced:
    """The culprit, and the first difference of the run that showed it."""

    culprit: Culprit
    first: Difference


Try = Callable[[Sequence[NumericChange]], tuple[Comparison, Done]]


def trace(
    changes: Sequence[NumericChange],
    whole: tuple[Comparison, Done],
    attempt: Try,
    probed: Callable[[NumericChange, Sequence[NumericChange], Difference], Done],
) -> Traced:
    """Find the culprit.

    Args:
        changes: all that can change numbers, in order.
        whole: the comparison that failed, under all of them.
        attempt: runs and compares under the first of them.
        probed: runs under the first of them, with the graphs of one checked, after a difference.
    """
    count, (comparison, done) = first_failing(changes, whole, attempt)
    assert comparison.first is not None
    if count == 0:
        how = "two runs of the plain script differ: it is not reproducible, so nothing is proved"
        return Traced(Culprit("the script", how=how), comparison.first)
    change = changes[count - 1]
    where = located(comparison.first, done)
    if change.on_graph:
        suspected = probe_of(probed(change, changes[:count], comparison.first).path)
        if suspected is not None:
            op, module, how = suspected
            where = Culprit("", op=op, module=module, how=how, parameter=where.parameter)
    line = None if change.span is None else change.span.line
    culprit = Culprit(
        change.name, change.clause, line, where.op, where.module, where.parameter, where.bucket,
        where.how,
    )  # fmt: skip
    return Traced(culprit, comparison.first)


def first_failing(
    changes: Sequence[NumericChange], whole: tuple[Comparison, Done], attempt: Try
) -> tuple[int, tuple[Comparison, Done]]:
    """The smallest number of changes under which the comparison fails, and that comparison."""
    low, high = 0, len(changes)
    failing = whole
    tried_none = False
    while low < high:
        middle = (low + high) // 2
        found = attempt(changes[:middle])
        tried_none = tried_none or middle == 0
        if found[0].first is None:
            low = middle + 1
        else:
            high, failing = middle, found
    if high == 0 and not tried_none:
        failing = attempt(())
    return high, failing


def located(first: Difference, done: Done) -> Culprit:
    """Parameter, module, bucket and op of the value that differs."""
    name = first.place.tensor
    root = next((r for r in done.roots if _owns(r, name)), None)
    if root is None:
        return Culprit("")
    parameter = next((p.name for p in root.parameters if _local(root, name) == p.name), "")
    module = _module_of(root, _local(root, name))
    bucket = op = ""
    for program in done.programs[:1]:
        holding = (b for b in program.buckets if b.root == root.name)
        bucket = next((b.name for b in holding if _holds(b, parameter)), "")
    for graph in root.graphs:
        made = next((g for g in graph.gradients if g.parameter == parameter), None)
        if made is not None and first.quantity.startswith("gradient"):
            op, module = made.op, made.module or module
    return Culprit("", op=op, module=module, parameter=parameter, bucket=bucket)


def _holds(bucket: Bucket, parameter: str) -> bool:
    return any(slot.parameter == parameter for slot in bucket.slots)


def _local(root: RootFact, name: str) -> str:
    return name.removeprefix(f"{root.name}/")


def _owns(root: RootFact, name: str) -> bool:
    local = _local(root, name)
    modules = {module for module, _ in root.modules}
    return any(p.name == local or local.startswith(f"{p.name}.") for p in root.parameters) or (
        local.rpartition(".")[0] in modules
    )


def _module_of(root: RootFact, name: str) -> str:
    """The innermost module whose path begins the name."""
    modules = {module for module, _ in root.modules}
    parts = name.split(".")
    paths = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((path for path in paths if path in modules), "")


def probe_of(run: Path) -> tuple[str, str, str] | None:
    """What a rank found when it ran a pass's graphs: op, module, and in words."""
    for path in sorted(run.glob("probe-*.msgpack")):
        found = msgpack.unpackb(path.read_bytes())
        return found["op"], found["module"], found["how"]
    return None
