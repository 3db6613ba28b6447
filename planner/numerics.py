"""What can change numbers under a plan: one list, for `plan`, and for the search of `verify`.

One change for each pass and block, found from facts: a block that nothing carries out changes
nothing. A pass with a reason (`why`) rounds otherwise than the script does; one without keeps every
bit when it is right, and is listed because it may be wrong. The changes stand in one order:
whatever comes later needs at most what comes before, so the plan with the first so many of them
is always a plan that can run.

| name | what carries it out |
|---|---|
| `insert_reductions`, `compress_wire`, `lower_roots`, `insert_updates` | `passes/` |
| `cast_precision`, `substitute_kernels`, `scale_loss` | passes over Dynamo graphs |
| `insert_ready`, `steer_fusion`, `recompute_values` | `capture/`, behind Dynamo |
| `guard_calls`, `store_parameters` | the ranks |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from sgplan.grammar.diagnostics import Span
from sgplan.grammar.plan import (
    Block,
    Fuse,
    Plan,
    Precision,
    Recompute,
    Separate,
    Sync,
)
from sgplan.planner import graph_need, guard_lines
from sgplan.planner.facts import Facts, RootFact
from sgplan.planner.program import PLANNED_PATHS

Rounding = Literal["kernels", "sums", "wire", "update"]
GRAPH_PASSES = frozenset({"cast_precision", "substitute_kernels", "scale_loss"})


@dataclass(frozen=True, slots=True)
class NumericChange:
    """One thing that can change numbers under a plan.

    Attributes:
        name: of the pass, as listings and messages have it.
        clause: the address of the block that asks for it (`fuse.bias_gelu`).
        span: of that block; None when it acts by default.
        why: how results change; empty for what keeps every bit.
        rounds: what may round otherwise than in the script: kernels of the model, sums of ranks,
            gradients on the wire, or the update.
        format: the number format that it brings in (`bf16`), else empty.
    """

    name: str
    clause: str
    span: Span | None = None
    why: str = ""
    rounds: tuple[Rounding, ...] = ()
    format: str = ""

    @property
    def key(self) -> str:
        """Names it among all changes of a plan."""
        return f"{self.name} {self.clause}"

    @property
    def on_graph(self) -> bool:
        """Whether it changes Dynamo graphs (`capture.rewrite`)."""
        return self.name in GRAPH_PASSES


def numeric_changes(
    plan: Plan, facts: Facts, steps: Collection[int] | None = None
) -> tuple[NumericChange, ...]:
    """All that acts and can change numbers, in order.

    Args:
        facts: of a run under the whole plan.
        steps: with those of `precision` blocks that hold in one of these; None for all.
    """
    held = [b for b in plan.precisions if steps is None or any(map(b.holds_at, steps))]
    once: dict[str, NumericChange] = {}
    for each in _ORDER:
        for change in each(plan, facts, held):
            once.setdefault(change.key, change)
    return tuple(once.values())


def active_numerics(plan: Plan, facts: Facts) -> tuple[NumericChange, ...]:
    """Those that round otherwise than the script even when they are right, each reason once."""
    changes = numeric_changes(plan, facts)
    return tuple({(change.name, change.why): change for change in changes if change.why}.values())


def key_of(name: str, block: Block) -> str:
    """The key of the change that a pass makes for a block."""
    return f"{name} {block.address}"


def rule_pass(rule: Fuse | Separate) -> str:
    """The pass that carries a rule out."""
    kernel = isinstance(rule, Fuse) and rule.with_ != "inductor"
    return "substitute_kernels" if kernel else "steer_fusion"


def engine_asker(plan: Plan, model: str | None) -> Block:
    """The block for which a model runs on its engine; a default `capture` without any."""
    capture, sync = plan.capture_of(model), plan.sync_of(model)
    if capture.engine != "auto" or graph_need.clause_needing(capture):
        return capture
    if sync.by == "in_graph":
        return sync
    return next(iter(graph_need.needing_graph(plan, model)), capture)


# --- what acts -----------------------------------------------------------------------------------

_Held = list[Precision]
_OfModel = TypeVar("_OfModel", Fuse | Separate, Fuse, Precision, Recompute)


def _reduced(plan: Plan, facts: Facts) -> Iterator[tuple[RootFact, Sync]]:
    for root in facts.roots:
        if root.path in PLANNED_PATHS:
            yield root, plan.sync_of(root.name)


def _compiled(facts: Facts) -> list[RootFact]:
    """Roots whose graphs the plan's passes see."""
    return [root for root in facts.roots if root.engine == "inductor" and root.path != "stock"]


def _for_compiled(blocks: Iterable[_OfModel], facts: Facts) -> Iterator[_OfModel]:
    names = {root.name for root in _compiled(facts)}
    if names:
        yield from (block for block in blocks if block.model in {None, *names})


def _change(
    name: str, block: Block, why: str = "", rounds: tuple[Rounding, ...] = (), form: str = ""
) -> NumericChange:
    return NumericChange(name, block.address, block.span, why, rounds, form)


def _reductions(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    many = facts.world > 2
    why = f"sums of {facts.world} ranks are taken in another order" if many else ""
    for _, sync in _reduced(plan, facts):
        yield _change("insert_reductions", sync, why, ("sums",) if many else ())


def _wire(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    for _, sync in _reduced(plan, facts):
        if sync.wire != "as_written":
            why = f"gradients are rounded to {sync.wire} before they are summed (`sync.wire`)"
            yield _change("compress_wire", sync, why, ("wire",), sync.wire)


def _engine(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    for root in facts.roots:
        capture = plan.capture_of(root.name)
        asker = engine_asker(plan, root.name) if root.made_compiled else capture
        if root.engine == "inductor" and root.path != "stock":
            yield _change("lower_roots", asker, _engine_why(plan, root), ("kernels",))
        elif root.kind == "compiled" and capture.engine == "eager":
            why = "eager kernels round differently from the compiled ones of the script"
            yield _change("lower_roots", asker, why, ("kernels",))


def _engine_why(plan: Plan, root: RootFact) -> str:
    """Empty where the script compiles: its graphs are only cut and fused otherwise."""
    if root.made_compiled:
        return "Inductor's kernels round differently from the eager ones of the script"
    capture = plan.capture_of(root.name)
    given = [n for n in ("autotune", "rounding", "random") if n in capture.written]
    return f"Inductor is told another `{'`, `'.join(given)}` than by the script" if given else ""


def _ready(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    for root, sync in _reduced(plan, facts):
        if root.path == "in_graph":
            yield _change("insert_ready", sync)


def _guards(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    holding = {g.address for r in _compiled(facts) for g in guard_lines.holding(plan, r.name)}
    for guard in plan.guards:
        if guard.address in holding:
            yield _change("guard_calls", guard)


def _scales(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    for block in _for_compiled([b for b in held if b.scale is not None], facts):
        why = f"`{block.address}` scales gradients inside of graphs, and skips what overflows"
        yield _change("scale_loss", block, why, ("kernels",))


def _stores(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    for block in (plan.storing(root.name) for root in facts.roots):
        if block is None:
            continue
        if block.params != "as_written":
            why = f"`{block.address}` stores parameters in {block.params}"
            yield _change("store_parameters", block, why, ("kernels", "update"), block.params)
        else:
            why = f"`{block.address}` moves fp32 masters of the parameters"
            yield _change("store_parameters", block, why, ("update",))


def _casts(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    for block in _for_compiled(held, facts):
        if block.compute != "as_written":
            why = f"`{block.address}` computes in {block.compute}"
            yield _change("cast_precision", block, why, ("kernels",), block.compute)


def _rules(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    rules: list[Fuse | Separate] = [*plan.separates, *plan.fuses]
    for rule in _for_compiled(rules, facts):
        if rule_pass(rule) == "steer_fusion":
            yield _change("steer_fusion", rule, _splits_bias(rule))
    for rule in _for_compiled(plan.fuses, facts):
        if rule_pass(rule) == "substitute_kernels":
            why = f"a Triton kernel stands for the ops of `{rule.address}`"
            yield _change("substitute_kernels", rule, why)


def _splits_bias(rule: Fuse | Separate) -> str:
    if isinstance(rule, Fuse) and any(selector.op == "bias" for selector in rule.match.steps[0]):
        return f"a bias that `{rule.address}` claims is added behind its product, not within it"
    return ""


def _recomputes(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    for block in _for_compiled(plan.recomputes, facts):
        yield _change("recompute_values", block)


def _updates(plan: Plan, facts: Facts, held: _Held) -> Iterator[NumericChange]:
    for fact in facts.optimizers:
        if fact.kind != "as_written":
            why = (
                f"{fact.kind} optimizers round differently from the script's own "
                "(`update.optimizer`)"
            )
            yield _change("insert_updates", plan.update_of(fact.root or None), why, ("update",))


# A loss scale before the casts that would underflow without it.
_ORDER: tuple[Callable[[Plan, Facts, _Held], Iterator[NumericChange]], ...] = (
    _reductions,
    _wire,
    _engine,
    _ready,
    _guards,
    _scales,
    _stores,
    _casts,
    _rules,
    _recomputes,
    _updates,
)
