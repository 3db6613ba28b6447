"""A saved plan on stdout: listing, ops, or JSON, of all ranks or one. Shared by `plan` and `show`.

Knows which view was asked for; the text of each is the planner's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgplan.failure import Failure
from sgplan.grammar.plan import Plan
from sgplan.planner.artefact import Artefact, Part
from sgplan.planner.kernels_listing import kernels_json, render_kernels
from sgplan.planner.listing import render_plan
from sgplan.planner.listing_json import plan_json
from sgplan.planner.ops_listing import ops_json, render_ops


@dataclass(frozen=True, slots=True)
class Shown:
    """A saved plan resolved for its own world, with the parts that were asked for."""

    plan: Plan
    parts: tuple[Part, ...]

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return [(part.program, part.facts) for part in self.parts]


def select(saved: Artefact, rank: int | None) -> Shown:
    """The parts of one rank, or of all.

    Raises:
        Failure: the artefact has no such rank, or none at all.
        Refused: its plan does not fit its own world.
    """
    ranks = [part.program.rank for part in saved.parts]
    parts = tuple(p for p in saved.parts if rank is None or p.program.rank == rank)
    if not parts:
        there = ", ".join(map(str, ranks)) or "none"
        raise Failure(f"there is no rank {rank} in it, only {there}" if ranks else "it is empty")
    facts = parts[0].facts
    return Shown(saved.plan.resolve(facts.world, facts.device), parts)


def print_view(shown: Shown, view: str) -> None:
    """Print `listing`, `ops` or `kernels`, or one of them as JSON (`ops_json`)."""
    sys.stdout.write(_VIEWS[view](shown))
    sys.stdout.flush()


def view_of(args: argparse.Namespace) -> str:
    """The view that the options of `add_view_options` name."""
    what = args.view or "listing"
    return f"{what}_json" if args.json else what


def as_json(shown: Shown) -> dict[str, Any]:
    """The machine form of the listing."""
    return plan_json(shown.plan, shown.pairs)


def _json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"


_VIEWS: dict[str, Callable[[Shown], str]] = {
    "listing": lambda shown: render_plan(shown.plan, shown.pairs),
    "ops": lambda shown: render_ops(shown.parts[0].facts),
    "kernels": lambda shown: render_kernels(shown.plan, shown.parts[0].facts),
    "listing_json": lambda shown: _json(as_json(shown)),
    "kernels_json": lambda shown: _json(kernels_json(shown.plan, shown.parts[0].facts)),
    "ops_json": lambda shown: _json(ops_json(shown.parts[0].facts)),
}
