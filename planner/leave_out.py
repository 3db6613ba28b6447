"""A plan without some of the passes that can change numbers, for `sgplan verify`.

What is left out is left out of the plan, so a run without a pass is a run under a smaller plan and
needs nothing of its own in the ranks. The changes stand in one order: whatever comes later needs
at most what comes before, so the plan with the first so many of them is always a plan that can run.
Without any of them nothing is left but the script as it is written, under stock DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from sgplan.grammar.diagnostics import Span
from sgplan.grammar.plan import Block, Capture, Fuse, Plan, Separate, Sync
from sgplan.planner import graph_need
from sgplan.planner.facts import RootFact


@dataclass(frozen=True, slots=True)
class NumericChange:
    """One thing that can change numbers under a plan.

    Attributes:
        name: of the pass, as listings and messages have it.
        clause: the address of the block that asks for it (`fuse.bias_gelu`).
        span: of that block; None when it acts by default.
        on_graph: whether it changes Dynamo graphs (`capture.rewrite`).
    """

    name: str
    clause: str
    span: Span | None = None
    on_graph: bool = False

    @property
    def key(self) -> str:
        """What `without` is told: one rule among several has a key of its own."""
        return f"{self.name} {self.clause}"


def numeric_changes(plan: Plan, roots: Sequence[RootFact]) -> tuple[NumericChange, ...]:
    """What can change numbers under this plan, in order.

    Args:
        roots: what a run under the whole plan found.
    """
    return tuple(change for each in _ORDER for change in each(plan, roots))


def without(plan: Plan, keys: Collection[str]) -> Plan:
    """The plan without the changes of these keys; equal to `plan` when there are none."""
    if not keys:
        return plan
    smaller = plan
    for name, leave in _LEAVE.items():
        clauses = {key.partition(" ")[2] for key in keys if key.partition(" ")[0] == name}
        if clauses:
            smaller = leave(smaller, clauses)
    # What is left must run where it ran in the whole plan: on the graphs that a clause needed.
    if not any(key.startswith("lower_roots ") for key in keys) and _needs_graph(plan):
        smaller = replace(smaller, captures=_on_inductor(smaller.captures))
    return replace(smaller, digest=f"{plan.digest}-{len(keys)}")


def everything(plan: Plan) -> frozenset[str]:
    """The keys that leave nothing of the plan but the script as it is written."""
    rules = [*plan.fuses, *plan.separates]
    named = [f"{name} " for name in _LEAVE if name not in ("steer_fusion", "substitute_kernels")]
    return frozenset([*named, *(f"{_pass_of(rule)} {rule.address}" for rule in rules)])


# --- what acts -----------------------------------------------------------------------------------


def _reducer(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    if any(root.path in ("hooks", "in_graph") for root in roots):
        yield _change("insert_reductions", "sync", plan.syncs)


def _wire(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    narrow = [sync for sync in plan.syncs if sync.wire != "as_written"]
    if narrow:
        yield _change("compress_wire", "sync", narrow)


def _engine(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    compiled = any(root.engine == "inductor" for root in roots)
    if plan.captures or any(root.made_compiled for root in roots):
        needing: Sequence[Block] = plan.captures or [
            block for root in roots for block in graph_need.needing_graph(plan, root.name)
        ]
        yield _change("lower_roots", "capture", needing)
    elif compiled:
        yield NumericChange("lower_roots", "capture")


def _ready(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    if any(root.path == "in_graph" for root in roots):
        yield _change("insert_ready", "sync", plan.syncs)


def _rules(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    rules: list[Fuse | Separate] = [*plan.separates, *plan.fuses]
    for rule in sorted(rules, key=lambda rule: _pass_of(rule) == "substitute_kernels"):
        name = _pass_of(rule)
        yield NumericChange(name, rule.address, rule.span, on_graph=name == "substitute_kernels")


def _precision(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    if plan.precisions:
        yield _change("cast_precision", "precision", plan.precisions, on_graph=True)


def _recompute(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    if plan.recomputes:
        yield _change("recompute", "recompute", plan.recomputes)


def _guards(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    if plan.guards:
        yield _change("guards", "guard", plan.guards)


def _update(plan: Plan, roots: Sequence[RootFact]) -> Iterator[NumericChange]:
    changed = [update for update in plan.updates if update.optimizer != "as_written"]
    if changed:
        yield _change("insert_updates", "update", changed)


_ORDER: tuple[Callable[[Plan, Sequence[RootFact]], Iterator[NumericChange]], ...] = (
    _reducer,
    _wire,
    _engine,
    _ready,
    _guards,
    _rules,
    _precision,
    _recompute,
    _update,
)


def _change(name: str, kind: str, blocks: Sequence[Block], on_graph: bool = False) -> NumericChange:
    first = next(iter(blocks), None)
    if first is None:
        return NumericChange(name, kind, None, on_graph)
    return NumericChange(name, first.address, first.span, on_graph)


def _pass_of(rule: Fuse | Separate) -> str:
    kernel = isinstance(rule, Fuse) and rule.with_ != "inductor"
    return "substitute_kernels" if kernel else "steer_fusion"


# --- how it is left out --------------------------------------------------------------------------


def _stock(plan: Plan, clauses: Collection[str]) -> Plan:
    return replace(plan, syncs=(Sync(by="stock"),))


def _wide(plan: Plan, clauses: Collection[str]) -> Plan:
    return replace(plan, syncs=tuple(replace(sync, wire="as_written") for sync in plan.syncs))


def _as_written(plan: Plan, clauses: Collection[str]) -> Plan:
    return replace(plan, captures=())


def _hooks(plan: Plan, clauses: Collection[str]) -> Plan:
    def hooked(sync: Sync) -> Sync:
        by = sync.by if sync.by == "stock" else "hooks"
        overlap = "prefer" if sync.overlap == "required" else sync.overlap
        return replace(sync, by=by, overlap=overlap)

    everywhere = any(sync.model is None for sync in plan.syncs)
    syncs = plan.syncs if everywhere else (*plan.syncs, Sync())
    return replace(plan, syncs=tuple(map(hooked, syncs)))


def _no_rules(plan: Plan, clauses: Collection[str]) -> Plan:
    return replace(
        plan,
        fuses=tuple(rule for rule in plan.fuses if rule.address not in clauses),
        separates=tuple(rule for rule in plan.separates if rule.address not in clauses),
    )


def _no_precision(plan: Plan, clauses: Collection[str]) -> Plan:
    return replace(plan, precisions=())


def _no_recompute(plan: Plan, clauses: Collection[str]) -> Plan:
    return replace(plan, recomputes=())


def _no_guards(plan: Plan, clauses: Collection[str]) -> Plan:
    return replace(plan, guards=())


def _own_update(plan: Plan, clauses: Collection[str]) -> Plan:
    return replace(plan, updates=())


# Wire and hooks before stock, which leaves nothing of them.
_LEAVE: dict[str, Callable[[Plan, Collection[str]], Plan]] = {
    "compress_wire": _wide,
    "insert_ready": _hooks,
    "insert_reductions": _stock,
    "lower_roots": _as_written,
    "guards": _no_guards,
    "steer_fusion": _no_rules,
    "substitute_kernels": _no_rules,
    "cast_precision": _no_precision,
    "recompute": _no_recompute,
    "insert_updates": _own_update,
}


def _needs_graph(plan: Plan) -> bool:
    return graph_need.anywhere(plan) or any(sync.by == "in_graph" for sync in plan.syncs)


def _on_inductor(captures: tuple[Capture, ...]) -> tuple[Capture, ...]:
    """Captures whose `auto` is what the clauses of the whole plan made of it."""
    everywhere = any(capture.model is None for capture in captures)
    all_of_them = captures if everywhere else (*captures, Capture())
    return tuple(replace(c, engine="inductor") if c.engine == "auto" else c for c in all_of_them)
