"""Where the patterns of rules occur in a graph, and which conditions hold there.

A site is a path of data flow through ops as the script called them. Two rules never claim the same
flow: the one with the higher priority has it. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.fx as fx

from sgplan.grammar.plan import MinGain, Selector
from sgplan.planner import torch_api
from sgplan.planner.capture.cost import bytes_moved, nbytes
from sgplan.planner.capture.groups import Flow, OpGroup, flows
from sgplan.planner.families import FAMILIES, is_layout
from sgplan.planner.globs import covers
from sgplan.planner.rules import Rule
from sgplan.planner.select import selects

Condition = Callable[["Site"], str]


@dataclass(eq=False, slots=True)
class Site:
    """One place where a rule's pattern occurs.

    Attributes:
        groups: one for each step.
        flows: all between neighbours; empty for a pattern of one step.
        refused: which condition of the rule does not hold, in words; empty when all do.
        taken: whether another rule has a part of it, so that this one says nothing here.
        notes: what else is worth saying.
    """

    rule: Rule
    groups: tuple[OpGroup, ...]
    flows: tuple[Flow, ...]
    refused: str = ""
    taken: bool = False
    notes: list[str] = field(default_factory=list[str])

    @property
    def key(self) -> str:
        return " > ".join(group.key for group in self.groups)

    @property
    def recomputed(self) -> bool:
        """Whether a backward graph computes a forward site again."""
        return not any(group.backward for group in self.groups)


@dataclass(frozen=True, slots=True)
class Found:
    """All sites of a graph, and where patterns begin without going on, by rule."""

    sites: tuple[Site, ...]
    near: tuple[tuple[str, str], ...]


def find(rules: Sequence[Rule], group_of: Mapping[fx.Node, OpGroup]) -> Found:
    """Sites of all rules, first rule first.

    Args:
        rules: higher priority first.
    """
    if not rules:
        return Found((), ())
    after: dict[OpGroup, list[Flow]] = {}
    for flow in flows(group_of):
        after.setdefault(flow.producer, []).append(flow)
    groups = [g for g in dict.fromkeys(group_of.values()) if not g.layout]
    claims: dict[tuple[fx.Node, OpGroup] | OpGroup, str] = {}
    sites: list[Site] = []
    near: list[tuple[str, str]] = []
    for rule in rules:
        for first in groups:
            if not _chosen(rule, 0, first):
                continue
            paths = list(_paths(rule, (first,), (), after))
            near += [] if paths else [(rule.address, _ends(first, after))]
            sites += [_claimed(Site(rule, path, along), claims) for path, along in paths]
    return Found(tuple(sites), tuple(near))


def _chosen(rule: Rule, step: int, group: OpGroup) -> bool:
    """Whether an op is selected by a step of the pattern and by the rule's globs."""
    if rule.inside and not any(covers(glob, group.module) for glob in rule.inside):
        return False
    if any(covers(glob, group.module) for glob in rule.outside):
        return False
    return any(_selected(selector, group) for selector in rule.pattern.steps[step])


def _selected(selector: Selector, group: OpGroup) -> bool:
    """A family names ops of the forward; those of the backward are named one by one."""
    if selector.glob is not None and not covers(selector.glob, group.module):
        return False
    if selector.op in FAMILIES and group.backward:
        return False
    return selector.op is None or selects(selector.op, group)


def _paths(
    rule: Rule,
    path: tuple[OpGroup, ...],
    along: tuple[Flow, ...],
    after: Mapping[OpGroup, Sequence[Flow]],
) -> Iterator[tuple[tuple[OpGroup, ...], tuple[Flow, ...]]]:
    step = len(path)
    if step == len(rule.pattern.steps):
        yield path, along
        return
    readers: dict[OpGroup, list[Flow]] = {}
    for flow in after.get(path[-1], ()):
        readers.setdefault(flow.consumer, []).append(flow)
    for group, between in readers.items():
        if _chosen(rule, step, group):
            yield from _paths(rule, (*path, group), (*along, *between), after)


def _claimed(site: Site, claims: dict[tuple[fx.Node, OpGroup] | OpGroup, str]) -> Site:
    """The site, refused where another rule has a part of it already."""
    wanted = [(flow.value, flow.consumer) for flow in site.flows] or list(site.groups)
    owner = next((claims[w] for w in wanted if w in claims), None)
    if owner is not None and owner != site.rule.address:
        site.refused, site.taken = f"`{owner}` has it, and comes first", True
    else:
        claims.update((w, site.rule.address) for w in wanted)
    return site


def _ends(group: OpGroup, after: Mapping[OpGroup, Sequence[Flow]]) -> str:
    into = dict.fromkeys(flow.consumer.op for flow in after.get(group, ()))
    goes = ", ".join(f"`{op}`" for op in into) or "no other op"
    return f"`{group.op}` of `{group.module or 'the model itself'}`, which flows into {goes}"


# --- conditions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What `min_gain` counts with.

    Attributes:
        bandwidth: bytes read or written in a second.
        launch: seconds that starting one more kernel costs.
    """

    bandwidth: float
    launch: float


def judge(sites: Iterable[Site], profile: Callable[[], DeviceProfile]) -> None:
    """Refuse every site whose conditions do not hold; note what a fusion has to cast.

    Args:
        profile: of the device; asked only when a rule has `min_gain`.
    """
    for site in sites:
        if site.refused or site.rule.kind != "fuse":
            continue
        for condition in site.rule.where:
            reason = _objection(condition, site, profile)
            if reason:
                site.refused = reason
                break
        else:
            site.notes += [text for flow in site.flows if (text := _dtypes(flow))]


def _objection(condition: str | MinGain, site: Site, profile: Callable[[], DeviceProfile]) -> str:
    if isinstance(condition, MinGain):
        return _low_gain(site, condition.ratio, profile())
    return next((text for flow in site.flows if (text := _CONDITIONS[condition](flow))), "")


def _layouts(flow: Flow) -> str:
    """The consumer's operand and result must have one stride order."""
    reads, makes = flow.operand.meta.get("val"), _result(flow.consumer)
    if not isinstance(reads, torch.Tensor) or not isinstance(makes, torch.Tensor):
        return ""
    if reads.dim() != makes.dim() or _order(reads) == _order(makes):
        return ""
    return f"layouts differ: `{flow.consumer.op}` reads {_shown(reads)} and makes {_shown(makes)}"


def _dtypes(flow: Flow) -> str:
    reads, makes = flow.value.meta.get("val"), _result(flow.consumer)
    if not isinstance(reads, torch.Tensor) or not isinstance(makes, torch.Tensor):
        return ""
    if reads.dtype == makes.dtype or not (reads.is_floating_point() and makes.is_floating_point()):
        return ""
    return f"cast from {_dtype(reads)} to {_dtype(makes)} inside the kernel"


def _other_dtype(flow: Flow) -> str:
    text = _dtypes(flow)
    return text and text.replace("cast from", "dtypes differ:").replace(" inside the kernel", "")


def _used_elsewhere(flow: Flow) -> str:
    """Another op of the script reads the value, or the caller gets it; saving it is no use."""
    ours = {id(node) for node in (*flow.producer.nodes, *flow.consumer.nodes)}
    pending, seen = [flow.value], {flow.value}
    while pending:
        for user in pending.pop().users:
            if user in seen or id(user) in ours:
                continue
            seen.add(user)
            if user.op == "output":
                continue
            if user.op == "call_function" and user.meta.get("original_aten") is not None:
                name = str(user.meta["original_aten"])
                if not is_layout(str(user.target)):
                    return f"its intermediate is also read by `{name}`"
            pending.append(user)
    return ""


_CONDITIONS: dict[str, Callable[[Flow], str]] = {
    "same_layout": _layouts,
    "same_dtype": _other_dtype,
    "single_use": _used_elsewhere,
}


def _low_gain(site: Site, least: float, profile: DeviceProfile) -> str:
    """Time op by op over time in one kernel, from bytes moved and kernels started."""
    apart = sum(sum(map(bytes_moved, _own(group))) for group in site.groups)
    saved = sum(2 * nbytes(flow.value.meta["val"]) for flow in site.flows)
    inner = sum(_inner(group) for group in site.groups)
    each = (apart - inner) / profile.bandwidth + len(site.groups) * profile.launch
    fused = (apart - inner - saved) / profile.bandwidth + profile.launch
    gain = each / fused
    return "" if gain >= least else f"predicted gain {gain:.2f}, below {least:g}"


def _own(group: OpGroup) -> list[fx.Node]:
    return [n for n in group.nodes if isinstance(n.meta.get("val"), torch.Tensor)]


def _inner(group: OpGroup) -> int:
    """Bytes written and read between the nodes of one op: a kernel of its own moves none."""
    members = set(group.nodes)
    return sum(
        nbytes(n.meta["val"]) * (1 + sum(user in members for user in n.users))
        for n in _own(group)
        if n.users and all(user in members for user in n.users)
    )


def _result(group: OpGroup) -> object:
    """What the op makes for others."""
    members = set(group.nodes)
    made = [n for n in group.nodes if any(user not in members for user in n.users)]
    return (made or group.nodes)[-1].meta.get("val")


def _order(value: torch.Tensor) -> tuple[int, ...]:
    """Dims from the slowest to the fastest; those of one element say nothing."""
    strides = [torch_api.size_hint(stride) for stride in value.stride()]
    dims = [d for d, size in enumerate(value.shape) if torch_api.size_hint(size) > 1]
    return tuple(sorted(dims, key=lambda d: (-strides[d], d)))


def _shown(value: torch.Tensor) -> str:
    sizes = "x".join(str(size) for size in value.shape)
    return f"{sizes} with strides {tuple(torch_api.size_hint(s) for s in value.stride())}"


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
