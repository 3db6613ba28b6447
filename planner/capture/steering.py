"""Rules on one ATen graph while Inductor compiles it, and the proof of what became of them.

    rewrite   sites are found; a bias that a rule claims is split off; where two ops must stay apart
              the first is stored: else Inductor inlines it, and its scheduler is never asked
    apart     the scheduler must not join what a rule separates
    together  and shall not refuse by heuristics what a rule fuses; legality stays its own
    fused     the schedule after fusion: kernels, and for each site whether it holds

The proof is the schedule, never a kernel's name: one C++ function may hold several loop nests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import torch
import torch.fx as fx

from sgplan.planner import effects, torch_api
from sgplan.planner.capture.bias import claims_bias, split_bias
from sgplan.planner.capture.effects import graph_accesses
from sgplan.planner.capture.groups import Flow, OpGroup, caller, group_ops
from sgplan.planner.capture.record import op_name
from sgplan.planner.capture.sites import DeviceProfile, Found, Site, find, judge
from sgplan.planner.facts import KernelFact, Outcome, Placed, SiteFact
from sgplan.planner.rules import Rule
from sgplan.planner.torch_api import Unit

# Raised when the same rules would make other code, or find other sites.
STEERING_VERSION = 4

# What is made -> the nodes of each op that reads it.
_Edges = dict[fx.Node, list[frozenset[fx.Node]]]
# Places of the units that compute a node.
_Homes = dict[fx.Node, list[int]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the compiler made of one graph: the fields of `GraphFact` that only it can fill."""

    kernels: tuple[KernelFact, ...] = ()
    sites: tuple[SiteFact, ...] = ()
    near: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Steering:
    """The hooks for the compile of one graph; `torch_api.FusionHooks`.

    Attributes:
        rules: of the graph's root, higher priority first.
        direction: of the graph.
        modules: module paths of the unwrapped model.
        profile: of the device, for `min_gain`.
        placed: sites of kernels of the user's, in the graph already or not.
        schedule: what was seen; None while nothing was scheduled, as on a cache hit.
        stop: called when the schedule is known, to end a compile that needs no code.
    """

    rules: Sequence[Rule]
    direction: Literal["forward", "backward"]
    modules: Collection[str]
    profile: Callable[[], DeviceProfile]
    placed: Sequence[Placed] = ()
    stop: Callable[[], None] | None = None
    schedule: Schedule | None = None
    _group_of: dict[fx.Node, OpGroup] = field(default_factory=dict[fx.Node, OpGroup])
    _found: Found = field(default_factory=lambda: Found((), ()))
    _apart: _Edges = field(default_factory=dict[Any, Any])
    _together: _Edges = field(default_factory=dict[Any, Any])
    _split: dict[fx.Node, fx.Node] = field(default_factory=dict[fx.Node, fx.Node])
    _objections: dict[tuple[str, str], str] = field(default_factory=dict[Any, str])

    @property
    def uuid(self) -> str:
        return f"sgplan{STEERING_VERSION}|{self.rules}"

    @property
    def steers(self) -> bool:
        return bool(self.rules)

    # --- before ----------------------------------------------------------------------------------

    def rewrite(self, graph: fx.Graph) -> None:
        """Find the sites and prepare the graph for what the rules say of them.

        Raises:
            Refused: effects did not stay in order, which is a fault of ours (SG0540).
        """
        if not self.steers:
            self._prepare(graph)
            return
        before = graph_accesses(graph, self.modules)
        self._prepare(graph)
        effects.require("steer_fusion", before, graph_accesses(graph, self.modules))

    def _prepare(self, graph: fx.Graph) -> None:
        self._group_of = group_ops(graph, self.modules)
        self._found = find(self.rules, self._group_of)
        judge(self._found.sites, self.profile)
        for site in self._found.sites:
            if site.rule.kind == "fuse" and not site.refused and claims_bias(site):
                self._split_bias(graph, site)
        for site in self._found.sites:
            fuses = site.rule.kind == "fuse" and not site.refused
            for value, readers in map(self._edge, () if site.taken else site.flows):
                (self._together if fuses else self._apart).setdefault(value, []).append(readers)
                if not fuses:
                    torch_api.compute_at_once(value)

    def _split_bias(self, graph: fx.Graph, site: Site) -> None:
        """A library call would hide the bias from any fusion."""
        first = site.groups[0]
        if any(node in self._split.values() for node in first.nodes):
            return  # another site of the same op
        split = split_bias(graph, first)
        if split is None:
            site.refused = f"the bias of `{first.op}` cannot be split off"
            return
        name = op_name(split.product.target)
        self._group_of[split.product] = OpGroup(
            name, first.module, (), f"{first.key}/product", first.backward, [split.product]
        )
        self._group_of[split.added] = self._group_of.pop(split.node)
        self._split[split.node] = split.added

    def _edge(self, flow: Flow) -> tuple[fx.Node, frozenset[fx.Node]]:
        """What is made, and the nodes of the op that reads it."""
        return self._split.get(flow.value, flow.value), frozenset(flow.consumer.nodes)

    # --- while the scheduler fuses ---------------------------------------------------------------

    def apart(self, one: AbstractSet[fx.Node], other: AbstractSet[fx.Node]) -> bool:
        return _joins(self._apart, one, other)

    def together(self, one: AbstractSet[fx.Node], other: AbstractSet[fx.Node]) -> bool:
        return _joins(self._together, one, other)

    def objected(self, one: str, other: str, reason: str) -> None:
        self._objections[one, other] = reason

    # --- after -----------------------------------------------------------------------------------

    def fused(self, units: Sequence[Unit]) -> None:
        """Read kernels and verdicts off the schedule."""
        homes = _homes(units)
        sites = [self._verdict(site, units, homes) for site in self._found.sites]
        if self.direction == "forward":
            sites += [self._housed(placed, homes) for placed in self.placed]
        touched = self._started(units)
        for site in sites:
            for kernel in site.kernels:
                touched.setdefault(kernel, {})[site.rule] = None
        kernels = tuple(
            KernelFact(unit.kind, self._ops(unit), unit.bytes, tuple(touched.get(place, ())))
            for place, unit in enumerate(units)
        )
        self.schedule = Schedule(kernels, tuple(sites), self._found.near)
        if self.stop is not None:
            self.stop()

    def _housed(self, placed: Placed, homes: _Homes) -> SiteFact:
        """A site of a kernel of the user's, with the units that start it."""
        named = [node for node in homes if placed.op and caller(node) == placed.fact.key]
        places = {place for node in named for place in homes[node]}
        return replace(placed.fact, kernels=tuple(sorted(places)))

    def _started(self, units: Sequence[Unit]) -> dict[int, dict[str, None]]:
        """The rules whose kernels a unit starts, a kernel's own backward among them."""
        rule_of = {placed.op: placed.fact.rule for placed in self.placed if placed.op}
        found: dict[int, dict[str, None]] = {}
        for place, unit in enumerate(units):
            for node in unit.nodes:
                rule = rule_of.get(_kernel_name(node).removesuffix("_backward"))
                if rule is not None:
                    found.setdefault(place, {})[rule] = None
        return found

    def _ops(self, unit: Unit) -> tuple[tuple[str, str], ...]:
        """What a unit computes, in graph order: layout only where there is nothing else."""
        known = (node for node in unit.nodes if node in self._group_of)
        groups = list(dict.fromkeys(self._group_of[node] for node in sorted(known)))
        computed = [group for group in groups if not group.layout] or groups
        return tuple((group.op, group.module) for group in computed)

    def _verdict(self, site: Site, units: Sequence[Unit], homes: _Homes) -> SiteFact:
        kernels = {place for g in site.groups for n in g.nodes for place in homes.get(n, ())}
        outcome, why = self._outcome(site, units, homes)
        ops = tuple((group.op, group.module) for group in site.groups)
        notes = "; ".join([*([why] if why else []), *site.notes])
        return SiteFact(site.rule.address, site.key, ops, outcome, notes, tuple(sorted(kernels)))

    def _outcome(self, site: Site, units: Sequence[Unit], homes: _Homes) -> tuple[Outcome, str]:
        if site.refused:
            return "refused", site.refused
        if site.rule.kind == "separate":
            joined = next((flow for flow in site.flows if self._joined(flow, homes)), None)
            if joined is not None:
                return "missed", f"`{joined.producer.op}` is computed inside its reader"
            return ("recomputed" if self._copy(site) else "separate"), ""
        if self._copy(site):
            return "recomputed", ""
        # Folded constants and views are in no unit.
        places = [homes[n] for group in site.groups for n in group.nodes if n in homes]
        home = set(places[0]).intersection(*places) if places else set[int]()
        if not home:
            return "missed", self._reason(site, units, homes)
        outer = all(units[place].kind == "outer loops" for place in home)
        return "fused", "loop nests that share their outer loops" if outer else ""

    def _joined(self, flow: Flow, homes: _Homes) -> bool:
        """Whether some unit both makes a value and reads it."""
        value, readers = self._edge(flow)
        making = set(homes.get(value, ()))
        return any(not making.isdisjoint(homes.get(reader, ())) for reader in readers)

    def _copy(self, site: Site) -> bool:
        """A backward graph that computes a forward site again."""
        return self.direction == "backward" and site.recomputed

    def _reason(self, site: Site, units: Sequence[Unit], homes: _Homes) -> str:
        """Why the scheduler did not join two neighbours of a site, in its own words."""
        places = [{p for n in group.nodes for p in homes.get(n, ())} for group in site.groups]
        for group, found in zip(site.groups, places, strict=True):
            if len(places) > 1 and any(units[place].kind == "library" for place in found):
                return f"`{group.op}` is a call of a library"
        for ones, others in zip(places, places[1:] or places, strict=False):
            for one, other in product(sorted(ones), sorted(others)):
                if one != other and (text := self._objection(units[one], units[other])):
                    return text
        return "its scheduler never compared them"

    def _objection(self, one: Unit, other: Unit) -> str:
        """What was said last of two units, or of parts of them."""
        mine, its = set(one.names), set(other.names)
        for (a, b), reason in reversed(self._objections.items()):
            left, right = set(a.split("_")), set(b.split("_"))
            if (left <= mine and right <= its) or (left <= its and right <= mine):
                return reason
        return ""


def _kernel_name(node: fx.Node) -> str:
    """The custom op that a node calls, without its overload."""
    op = op_name(node.target) if isinstance(node.target, torch._ops.OpOverload) else ""
    return op.rpartition(".")[0]


def _joins(edges: _Edges, one: AbstractSet[fx.Node], other: AbstractSet[fx.Node]) -> bool:
    """Whether one of two units reads what the other makes along one of these edges."""
    return any(
        not readers.isdisjoint(reading)
        for making, reading in ((one, other), (other, one))
        for value in making
        if value in edges
        for readers in edges[value]
    )


def _homes(units: Sequence[Unit]) -> _Homes:
    found: _Homes = {}
    for place, unit in enumerate(units):
        for node in unit.nodes:
            found.setdefault(node, []).append(place)
    return found
