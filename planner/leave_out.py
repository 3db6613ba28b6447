"""A plan without some of the passes that can change numbers, for `sgplan verify`.

What is left out is left out of the plan, so a run without a pass is a run under a smaller plan and
needs nothing of its own in the ranks. What can be left out, and in which order, is `numerics.py`'s.
Without any of it nothing is left but the script as it is written, under stock DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TypeVar

from sgplan.grammar.plan import (
    Block,
    Capture,
    Fuse,
    Plan,
    Precision,
    Separate,
    Sync,
    Update,
)
from sgplan.planner.numerics import engine_asker, key_of, rule_pass

_OfModel = TypeVar("_OfModel", Sync, Capture)
_Left = Callable[[str, Block], bool]
_SYNCS = ("insert_reductions", "compress_wire", "insert_ready")
_PRECISION = ("scale_loss", "store_parameters", "cast_precision")


def without(plan: Plan, keys: Collection[str]) -> Plan:
    """The plan without the changes of these keys; equal to `plan` when there are none."""
    if not keys:
        return plan

    def left(name: str, block: Block) -> bool:
        return key_of(name, block) in keys

    return replace(
        plan,
        syncs=tuple(_sync(sync, left) for sync in _everywhere(plan.syncs, Sync())),
        captures=_captures(plan, left),
        guards=tuple(g for g in plan.guards if not left("guard_calls", g)),
        fuses=tuple(rule for rule in plan.fuses if not left(rule_pass(rule), rule)),
        separates=tuple(rule for rule in plan.separates if not left(rule_pass(rule), rule)),
        precisions=_precisions(plan, left),
        recomputes=tuple(r for r in plan.recomputes if not left("recompute_values", r)),
        updates=tuple(
            Update(label=update.label, model=update.model)
            if left("insert_updates", update)
            else update
            for update in plan.updates
        ),
        digest=f"{plan.digest}-{len(keys)}",
    )


def everything(plan: Plan) -> frozenset[str]:
    """The keys that leave nothing of the plan but the script as it is written."""
    return frozenset(key_of(name, block) for name, block in _all(plan))


def _all(plan: Plan) -> Iterator[tuple[str, Block]]:
    """Every change that the plan could ask for, whatever is found in the script."""
    yield from ((name, sync) for sync in _everywhere(plan.syncs, Sync()) for name in _SYNCS)
    yield from (("lower_roots", capture) for capture in _everywhere(plan.captures, Capture()))
    yield from (("lower_roots", engine_asker(plan, model)) for model in _models(plan))
    yield from (("guard_calls", guard) for guard in plan.guards)
    yield from ((name, block) for block in plan.precisions for name in _PRECISION)
    rules: list[Fuse | Separate] = [*plan.fuses, *plan.separates]
    yield from ((rule_pass(rule), rule) for rule in rules)
    yield from (("recompute_values", block) for block in plan.recomputes)
    yield from (("insert_updates", update) for update in plan.updates)


def _everywhere(blocks: tuple[_OfModel, ...], default: _OfModel) -> tuple[_OfModel, ...]:
    """The blocks, and what holds for models that none of them is for."""
    return blocks if any(block.model is None for block in blocks) else (*blocks, default)


def _models(plan: Plan) -> list[str | None]:
    return [None, *(model.label for model in plan.models)]


# --- how it is left out --------------------------------------------------------------------------


def _sync(sync: Sync, left: _Left) -> Sync:
    if left("insert_reductions", sync):
        return Sync(label=sync.label, model=sync.model, by="stock")
    if left("compress_wire", sync):
        sync = replace(sync, wire="as_written")
    if left("insert_ready", sync) and sync.by != "stock":
        overlap = "prefer" if sync.overlap == "required" else sync.overlap
        sync = replace(sync, by="hooks", overlap=overlap)
    return sync


def _captures(plan: Plan, left: _Left) -> tuple[Capture, ...]:
    """What is left must run where it ran in the whole plan: on the graphs that a clause needed."""
    kept = {
        capture.model: Capture(label=capture.label, model=capture.model, engine="as_written")
        if left("lower_roots", capture)
        else capture
        for capture in plan.captures
    }
    for model in _models(plan):
        asker = engine_asker(plan, model)
        if asker.present and not isinstance(asker, Capture) and not left("lower_roots", asker):
            capture = kept.get(model) or replace(plan.capture_of(model), model=model)
            if capture.engine == "auto":
                kept[model] = replace(capture, engine="inductor")
    return tuple(kept.values())


def _precisions(plan: Plan, left: _Left) -> tuple[Precision, ...]:
    """A block without its casts still has its ops: they keep the formats of the script."""
    smaller = tuple(_precision(block, plan.storing(block.model), left) for block in plan.precisions)
    return smaller if any(b.changes_graph or b.stores for b in smaller) else ()


def _precision(block: Precision, stores: Precision | None, left: _Left) -> Precision:
    scale = block.scale
    found = block
    if stores is not None and left("store_parameters", stores):
        found = replace(found, params="as_written", master=None)
    if left("cast_precision", block):
        found = replace(found, compute="as_written", keep_fp32=())
    if found is not block and scale is not None:
        found = replace(found, loss_scale=scale)  # `auto` followed from what is gone
    if left("scale_loss", block):
        # `off` would switch off what another block asks for.
        found = replace(found, loss_scale="auto")
        found = replace(found, loss_scale="off") if found.computes_fp16 else found
    return found
