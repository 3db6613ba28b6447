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
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import torch
import torch.fx as fx

from sgplan.planner import torch_api
from sgplan.planner.capture.groups import Flow, OpGroup, group_ops
from sgplan.planner.capture.record import op_name
from sgplan.planner.capture.sites import DeviceProfile, Found, Site, find, judge
from sgplan.planner.facts import KernelFact, Outcome, SiteFact
from sgplan.planner.rules import Rule
from sgplan.planner.torch_api import Unit

# Raised when the same rules would make other code, or find other sites.
STEERING_VERSION = 3

_ADDMM, _CONV = torch.ops.aten.addmm.default, torch.ops.aten.convolution.default
_VIEWS = tuple(getattr(torch.ops.aten, n).default for n in ("view", "_unsafe_view", "reshape"))
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
        schedule: what was seen; None while nothing was scheduled, as on a cache hit.
        stop: called when the schedule is known, to end a compile that needs no code.
    """

    rules: Sequence[Rule]
    direction: Literal["forward", "backward"]
    modules: Collection[str]
    profile: Callable[[], DeviceProfile]
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
        """Find the sites and prepare the graph for what the rules say of them."""
        self._group_of = group_ops(graph, self.modules)
        self._found = find(self.rules, self._group_of)
        judge(self._found.sites, self.profile)
        for site in self._found.sites:
            if site.rule.kind == "fuse" and not site.refused and _claims_bias(site):
                self._split_bias(graph, site)
        for site in self._found.sites:
            fuses = site.rule.kind == "fuse" and not site.refused
            for value, readers in map(self._edge, () if site.taken else site.flows):
                (self._together if fuses else self._apart).setdefault(value, []).append(readers)
                if not fuses:
                    torch_api.compute_at_once(value)

    def _split_bias(self, graph: fx.Graph, site: Site) -> None:
        """`bias` as a step is the addition alone: a library call would hide it from any fusion."""
        first = site.groups[0]
        if any(node in self._split.values() for node in first.nodes):
            return  # another site of the same op
        node = next((n for n in first.nodes if n.target in (_ADDMM, _CONV)), None)
        if node is None or node.kwargs:
            site.refused = f"the bias of `{first.op}` cannot be split off"
            return
        product, added = _bias_added(graph, node)
        name = op_name(product.target)
        self._group_of[product] = OpGroup(
            name, first.module, (), f"{first.key}/product", first.backward, [product]
        )
        first.nodes[first.nodes.index(node)] = added
        self._group_of[added] = self._group_of.pop(node)
        self._split[node] = added

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
        touched: dict[int, dict[str, None]] = {}
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


def _claims_bias(site: Site) -> bool:
    first = site.rule.pattern.steps[0]
    return any(s.op == "bias" for s in first) and "bias" in site.groups[0].families


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


def _bias_added(graph: fx.Graph, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """`addmm(b, x, w)` as `mm(x, w) + b`; a convolution likewise. Returns product and addition.

    Where the product is looked at in another shape the addition has that shape, and so the loops
    of the op that reads it.
    """
    shaped = [n for n in node.users if n.target in _VIEWS and _keeps_last_dim(n, node)]
    value = (shaped[0] if shaped else node).meta["val"]
    with graph.inserting_before(node):
        if node.target is _ADDMM:
            bias, x, w = node.args
            made = graph.call_function(torch.ops.aten.mm.default, (x, w))
            added = _plus(graph, _viewed(graph, _like(made, node), value.shape), bias)
        else:
            x, w, bias, *rest = node.args
            made = graph.call_function(_CONV, (x, w, None, *rest))
            wide = [1, -1, *[1] * (value.dim() - 2)]
            added = _plus(graph, _like(made, node), _viewed(graph, bias, wide))
        flat = _viewed(graph, _like(added, node, value), node.meta["val"].shape)
    for view in shaped:
        if view.meta["val"].shape == value.shape:
            view.replace_all_uses_with(added)
            graph.erase_node(view)
    node.replace_all_uses_with(flat)
    graph.erase_node(node)
    return made, added


def _keeps_last_dim(view: fx.Node, node: fx.Node) -> bool:
    return bool(view.meta["val"].shape[-1:] == node.meta["val"].shape[-1:])


def _like(made: fx.Node, node: fx.Node, value: torch.Tensor | None = None) -> fx.Node:
    """Give a new node the marks of the one that it stands for."""
    made.meta.update(node.meta)
    made.meta["val"] = node.meta["val"] if value is None else value
    return made


def _plus(graph: fx.Graph, one: Any, other: Any) -> fx.Node:
    return graph.call_function(torch.ops.aten.add.Tensor, (one, other))


def _viewed(graph: fx.Graph, node: Any, shape: Sequence[Any]) -> fx.Node:
    """The node in a shape; itself where it has that shape."""
    if tuple(node.meta["val"].shape) == tuple(shape):
        return node
    view = graph.call_function(torch.ops.aten.reshape.default, (node, list(shape)))
    view.meta["val"] = node.meta["val"].view(list(shape))
    return view
