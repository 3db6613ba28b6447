"""What one reducer is asked when a step has ended: its seconds, its fallbacks, its overlap.

Knows what a step promised; refuses to know what a step is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.interpreter import events
from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.roots import Root

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank


def add(rank: Rank, reducer: Reducer) -> None:
    """Add a reducer's share to the step; also that of one whose model is gone before it ends."""
    rank.steps.wait += reducer.wait_seconds
    rank.steps.own += reducer.own_seconds
    rank.steps.in_graph += reducer.reduced_in_graph
    rank.steps.by_hooks += reducer.reduced_by_hooks
    reducer.wait_seconds = reducer.own_seconds = 0.0
    reducer.reduced_in_graph = reducer.reduced_by_hooks = 0


def account(rank: Rank, reducer: Reducer) -> None:
    """Add a reducer's share to the step, say what did not go as planned, and start it afresh."""
    add(rank, reducer)
    if reducer.hooked:
        _note_hooks(rank, rank.root_named(reducer.setup.root), reducer)
    if reducer.late:
        if not rank.steps.step:
            _check_overlap(rank, rank.root_named(reducer.setup.root), reducer)
        reducer.late.clear()
    reducer.taken = reducer.hooked = 0


def _note_hooks(rank: Rank, root: Root, reducer: Reducer) -> None:
    """A backward the gate refused, in whole or in part, was reduced by hooks: counted."""
    if root.path == "in_graph":
        total = reducer.hooked + reducer.taken
        why = f"{reducer.hooked} of {total} gradients were not safe inside the graph"
        rank.emit(events.FallbackTaken, root.name, "reduced by hooks", why)


def _check_overlap(rank: Rank, root: Root, reducer: Reducer) -> None:
    """`overlap = required` of a root without a captured backward, in the first step."""
    sync = rank.sync_of(root)
    if sync.overlap != "required" or root.graphs:
        return
    span = sync.origin("overlap")
    late = ", ".join(f"`{name}`" for name in reducer.late)
    rank.report(
        [
            Diagnostic(
                "SG0502",
                f"{late} of `{root.name}` could start only behind the last gradient",
                None if span is None else Label(span, "overlap is required here"),
                notes=("in the first step no gradient was computed after its start",),
                help="make `sync.bucket` smaller, or write `overlap = prefer`",
            )
        ]
    )
