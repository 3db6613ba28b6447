"""Which ops of a joint graph are computed again in its backward, as the plan's `recompute` asks.

The joint graph is cut by torch's own min cut; what is said here is which ops it shall compute
again and which it shall keep, as marks on nodes. Every cut is measured, and the last one is
checked: an op that draws random numbers runs once, and the backward reads no input that the forward
has written.

Why torch alone does not hold the first: with `activation_memory_budget` below 1 its min cut
(`torch._functorch.partitioners`) calls random only `native_dropout`, `rand_like` and `randn_like`.
Inductor has replaced those by `inductor_seeds` and `inductor_random` before, so that the cut may
draw the seed a second time; and a budget may also hand it the ops of the list. Here every op with
torch's tag `nondeterministic_seeded` stays in the forward: its seed is saved, or what it drew.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx as fx
from torch.utils import _pytree as pytree

from sgplan.planner import effects, torch_api
from sgplan.planner.capture.cost import is_view, memory_owner, saved_results
from sgplan.planner.capture.effects import graph_accesses, writes, written_inputs
from sgplan.planner.capture.groups import group_ops
from sgplan.planner.capture.provenance import module_of
from sgplan.planner.capture.random_ops import draws, open_dropouts
from sgplan.planner.capture.sites import find
from sgplan.planner.facts import GraphFact, RecomputeFact
from sgplan.planner.globs import covers, matching
from sgplan.planner.recompute import Request
from sgplan.planner.rules import Rule

RECOMPUTE_VERSION = 2

# Cuts that are tried for a share of the memory: the budget of a cut says little of what it keeps.
TRIALS = 6
# A cut that keeps this much of what it may is good enough.
CLOSE = 0.95

# Ops of these libraries compute the same from the same inputs; of others nobody knows.
_KNOWN = frozenset({"aten", "prims", "sgplan_kernels"})


@dataclass(frozen=True, slots=True)
class Recomputing:
    """What the plan asks of the graphs of one root.

    Attributes:
        requests: higher priority first.
        modules: module paths of the unwrapped model.
    """

    requests: tuple[Request, ...] = ()
    modules: tuple[str, ...] = ()

    def partition(self) -> Partition:
        """For the compile of one Dynamo graph."""
        return Partition(self)


NOTHING = Recomputing()


class Partition:
    """Cuts one joint graph in two, and knows afterwards what came of the plan's requests."""

    def __init__(self, asked: Recomputing) -> None:
        self._asked = asked
        self._without: int | None = None
        self._facts: tuple[RecomputeFact, ...] = ()

    @property
    def patches(self) -> dict[str, Any]:
        """Inductor's settings for it; both of its caches know them by the requests."""
        if not self._asked.requests:
            return {}
        key = f"sgplan recompute {RECOMPUTE_VERSION} {self._asked!r}"
        return {"custom_partitioner_fn": torch_api.partitioner(self._cut, key)}

    def told(self, fact: GraphFact) -> GraphFact:
        """The facts of a captured graph, with what is computed again for its backward."""
        if fact.direction != "forward" or self._without is None:
            return fact
        return replace(fact, saved_without=self._without, recomputed=self._facts)

    def _cut(
        self, joint: fx.GraphModule, inputs: Sequence[Any], **given: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        found = graph_accesses(joint.graph, self._asked.modules)
        open_dropouts(joint.graph)
        copies = keep_read(joint.graph, given["num_fwd_outputs"])
        effects.require("recompute", found, graph_accesses(joint.graph, self._asked.modules))
        before = Marks.before(joint.graph, copies)
        plain = Cut.of(joint, inputs, given, before)
        # Torch has folded equal nodes into one by now; names stay.
        work = _Work(plain.joint, inputs, given, self._asked.modules, plain, before)
        for request in self._asked.requests:
            work.follow(request)
        final = work.now()
        self._without, self._facts = plain.saved_bytes, work.facts(final)
        return final.forward, final.backward


@dataclass(frozen=True, slots=True)
class Marks:
    """What is said of nodes, by name; a node without a mark is the min cut's to decide."""

    again: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()

    @classmethod
    def before(cls, graph: fx.Graph, copies: Iterable[str] = ()) -> Marks:
        """What holds without any request: nothing that may differ the second time runs twice.

        Args:
            copies: of inputs that the forward writes.
        """
        return cls(kept=frozenset((*copies, *(n.name for n in graph.nodes if _runs_once(n)))))

    def put(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.name in self.again:
                torch_api.mark_recompute(node)
            elif node.name in self.kept:
                torch_api.mark_saved(node)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """One way to cut a joint graph.

    Attributes:
        joint: the graph as torch had it at the end, marks included.
        saved: bytes of activations that the forward keeps, by the node that made them.
        again: ops that both graphs compute.
    """

    joint: fx.GraphModule
    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: dict[str, int]
    again: frozenset[str]

    @property
    def saved_bytes(self) -> int:
        return sum(self.saved.values())

    @classmethod
    def of(
        cls,
        joint: fx.GraphModule,
        inputs: Sequence[Any],
        given: dict[str, Any],
        marks: Marks,
        budget: float | None = None,
    ) -> Cut:
        """Cut a copy of the graph.

        Args:
            given: what Inductor passes on to a partitioner.
            budget: torch's `activation_memory_budget`; None leaves it as the script has it.
        """
        copied = torch_api.copied_graph(joint)
        marks.put(copied.graph)
        forward, backward = torch_api.min_cut(copied, inputs, budget, **given)
        saved = {node.name: size for node, size in saved_results(forward).items()}
        return cls(copied, forward, backward, saved, _ops(forward) & _ops(backward))


def _ops(gm: fx.GraphModule) -> frozenset[str]:
    return frozenset(node.name for node in gm.graph.nodes if node.op == "call_function")


@dataclass(slots=True)
class _Scope:
    """What one request selects in a graph."""

    request: Request
    ops: frozenset[str]
    limit: int | None = None
    rival: str = ""
    objection: str = ""


@dataclass(slots=True)
class _Work:
    """Follows requests one by one; each finds the marks of those before it.

    Attributes:
        plain: the cut without any request.
        marks: of all requests so far.
        forward: ops of the forward, in order.
    """

    joint: fx.GraphModule
    inputs: Sequence[Any]
    given: dict[str, Any]
    modules: tuple[str, ...]
    plain: Cut
    marks: Marks
    forward: list[fx.Node] = field(init=False)
    ours: frozenset[fx.Node] = field(init=False)
    scopes: list[_Scope] = field(default_factory=list[_Scope])

    def __post_init__(self) -> None:
        self.forward = _forward_ops(self.joint.graph, self.given["num_fwd_outputs"])
        self.ours = frozenset(self.forward)

    def follow(self, request: Request) -> None:
        """Add the marks that a request comes to."""
        scope = _Scope(request, self._selected(request))
        self.scopes.append(scope)
        if self._contested(scope):
            return
        if request.memory is not None:
            self._to_share(scope, request.memory)
        elif request.every is not None:
            self._every(scope, request.every)
        else:
            self._again(scope.ops)

    def now(self) -> Cut:
        """The cut under the marks so far."""
        return self._cut(self.marks) if self.marks.again else self.plain

    def facts(self, final: Cut) -> tuple[RecomputeFact, ...]:
        """What came of each request, and what is wrong with the cut."""
        fault = next(iter(faults(final.forward, final.backward)), "")
        more = final.again - self.plain.again
        real = {node.name for node in self.forward if not is_view(node) and not _is_part(node)}
        return tuple(
            RecomputeFact(
                clause=scope.request.address,
                before=_bytes(self.plain, scope.ops),
                after=_bytes(final, scope.ops),
                ops=len(more & self._reach(scope) & real),
                limit=scope.limit,
                objection=scope.objection or fault,
                rival=scope.rival,
            )
            for scope in self.scopes
        )

    # --- what a request selects ------------------------------------------------------------------

    def _selected(self, request: Request) -> frozenset[str]:
        inside = [
            node
            for node in self.forward
            if not request.inside
            or any(covers(glob, module_of(node, self.modules)) for glob in request.inside)
        ]
        names = frozenset(node.name for node in inside)
        return names if request.pattern is None else names & self._at_sites(request)

    def _at_sites(self, request: Request) -> frozenset[str]:
        assert request.pattern is not None
        rule = Rule(request.address, "fuse", request.pattern)
        found = find([rule], group_ops(self.joint.graph, self.modules))
        return frozenset(
            node.name for site in found.sites for group in site.groups for node in group.nodes
        )

    def _contested(self, scope: _Scope) -> bool:
        """Take out what an earlier block has; without a priority nobody has it."""
        for earlier in self.scopes[:-1]:
            shared = scope.ops & earlier.ops
            if shared and earlier.request.priority == scope.request.priority:
                first = next(node for node in self.forward if node.name in shared)
                module = module_of(first, self.modules) or "the model itself"
                scope.rival = earlier.request.address
                scope.objection = f"`{first.target}` of `{module}`"
                return True
            scope.ops -= earlier.ops
        return False

    def _reach(self, scope: _Scope) -> frozenset[str]:
        """The ops that only this request, of all, can have had computed again."""
        others = frozenset().union(*(s.ops for s in self.scopes if s is not scope))
        return frozenset(node.name for node in self.forward) - others

    # --- marks -----------------------------------------------------------------------------------

    def _cut(self, marks: Marks, budget: float | None = None) -> Cut:
        return Cut.of(self.joint, self.inputs, self.given, marks, budget)

    def _again(self, names: Collection[str], kept: Iterable[str] = ()) -> None:
        """Have ops computed again where that is possible, others kept."""
        stay = self.marks.kept | frozenset(kept)
        again = set(self.marks.again)
        drawn: set[fx.Node] = set()
        for node in self.forward:
            made_of = node.all_input_nodes
            # A mask is kept in its smallest form, which the min cut finds: not as what was drawn.
            if _keeps_draw(node) or (made_of and all(source in drawn for source in made_of)):
                drawn.add(node)
                continue
            # One result of an op that stays is saved, not computed.
            whole = not _is_part(node) or made_of[0].name in again
            if whole and node.name in names and node.name not in stay and _markable(node):
                again.add(node.name)
        self.marks = Marks(frozenset(again), self.marks.kept | frozenset(kept))

    def _to_share(self, scope: _Scope, share: float) -> None:
        """Have so much computed again that at most a share of the bytes is kept.

        The search is over torch's budget, which weighs bytes against FLOPs; of the cuts that hold
        the share, the one that keeps most computes least again.
        """
        scope.limit = int(_bytes(self.plain, scope.ops) * share)
        now = self.now()
        if _bytes(now, scope.ops) <= scope.limit:
            return
        outside = {n.name for n in self.forward if n.name not in scope.ops} - now.again
        held = Marks(self.marks.again, self.marks.kept | outside)
        low, high, budget = 0.0, 1.0, share
        best: Cut | None = None
        for _ in range(TRIALS):
            found = self._cut(held, budget)
            kept = _bytes(found, scope.ops)
            if kept > scope.limit:
                high = budget
            else:
                low = budget
                if best is not None and kept <= _bytes(best, scope.ops):
                    break
                best = found
                if kept >= CLOSE * scope.limit:
                    break
            budget = (low + high) / 2
        self._again(scope.ops if best is None else best.again)

    def _every(self, scope: _Scope, count: int) -> None:
        """Groups of modules in the order in which they run: inputs are kept, the rest is not."""
        groups = self._groups(scope, count)
        taken: frozenset[str] = frozenset().union(*groups)
        for own in groups:
            others = taken - own
            inner = own | (self._between(own) - others)
            edges = {
                memory_owner(node).name
                for node in self.forward
                if node.name in inner and self._leaves(node, inner)
            }
            within = inner if scope.request.pattern is None else inner & scope.ops
            self._again(within - edges - self._claimed(), edges & inner)

    def _groups(self, scope: _Scope, count: int) -> list[frozenset[str]]:
        named = {m for glob in scope.request.inside for m in matching(glob, self.modules)}
        outer = {m for m in named if not any(_within(m, other) for other in named - {m})}
        parts: dict[str, set[str]] = {}
        for node in self.forward:
            module = module_of(node, self.modules)
            owner = next((m for m in outer if m == module or _within(module, m)), None)
            if owner is not None:
                parts.setdefault(owner, set()).add(node.name)
        listed = list(parts.values())
        return [
            frozenset().union(*listed[first : first + count])
            for first in range(0, len(listed), count)
        ]

    def _claimed(self) -> frozenset[str]:
        """Ops of the requests before the last."""
        return frozenset().union(*(scope.ops for scope in self.scopes[:-1]))

    def _leaves(self, node: fx.Node, inner: Collection[str]) -> bool:
        """Whether the forward reads a node outside of its group."""
        return any(u.op == "output" or (u in self.ours and u.name not in inner) for u in node.users)

    def _between(self, own: frozenset[str]) -> frozenset[str]:
        """Ops that read of a group and that the group reads, such as a sum between two modules."""
        behind: set[fx.Node] = set()
        for node in self.forward:
            if any(s.name in own or s in behind for s in node.all_input_nodes):
                behind.add(node)
        found: set[str] = set()
        for node in reversed(self.forward):
            if node in behind and any(u.name in own or u.name in found for u in node.users):
                found.add(node.name)
        return frozenset(found)


def _within(path: str, other: str) -> bool:
    return path.startswith(f"{other}.")


def _bytes(cut: Cut, names: Collection[str]) -> int:
    return sum(size for name, size in cut.saved.items() if name in names)


# --- nodes ---------------------------------------------------------------------------------------


def _forward_ops(graph: fx.Graph, outputs: int) -> list[fx.Node]:
    """The ops that the forward's results and mutations need, in graph order."""
    values = pytree.tree_leaves(graph.output_node().args)[:outputs]
    found = _sources([*values, *(n for n in graph.nodes if writes(n) and not _is_backward(n))])
    return [node for node in graph.nodes if node in found and node.op == "call_function"]


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def _runs_once(node: fx.Node) -> bool:
    """Whether an op may do something else the second time, or something twice.

    Ops that the script's own `torch.utils.checkpoint` computes again are torch's business.
    """
    if node.op != "call_function" or torch_api.recomputed_by_script(node):
        return False
    op = node.target
    if isinstance(op, torch._ops.OpOverload):
        return draws(node) or writes(node) or op.namespace not in _KNOWN
    return isinstance(op, torch._ops.HigherOrderOperator)


def _keeps_draw(node: fx.Node) -> bool:
    """Whether a node draws what is kept itself; from a seed the same numbers are made again."""
    return draws(node) and "inductor_seed" not in str(node.target)


def _markable(node: fx.Node) -> bool:
    """Sizes and the script's own checkpoints are not ours to mark."""
    value = node.meta.get("val")
    tensors = isinstance(value, torch.Tensor | tuple | list)
    return tensors and not torch_api.recomputed_by_script(node)


def _is_part(node: fx.Node) -> bool:
    """Whether a node is one result of an op with several."""
    return node.target is operator.getitem


def keep_read(graph: fx.Graph, outputs: int) -> list[str]:
    """Keep a copy of every input that the forward writes and the backward depends on.

    In eager mode the script's own `clone` is saved; torch's min cut drops it as a copy of an input,
    and would read the input again after the write.

    Args:
        outputs: how many of the graph's outputs are the forward's.

    Returns:
        The names of the copies.
    """
    copies: list[str] = []
    needed = _sources(pytree.tree_leaves(graph.output_node().args)[outputs:])
    for node in _written_by_forward(graph):
        readers = [user for user in node.users if not writes(user)]
        if needed.isdisjoint(readers):
            continue
        with graph.inserting_before(_first_op(graph)):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        # Memory of its own: the min cut takes what shares the input's for free.
        copy.meta = {"val": node.meta["val"].clone(), "partitioner_tag": "is_forward"}
        copies.append(copy.name)
        for user in readers:
            user.replace_input_with(node, copy)
    return copies


def _first_op(graph: fx.Graph) -> fx.Node:
    return next(node for node in graph.nodes if node.op != "placeholder")


def _written_by_forward(graph: fx.Graph) -> list[fx.Node]:
    """The inputs that a forward writes, in the graph or behind it, in their order."""
    found = written_inputs(node for node in graph.nodes if not _is_backward(node))
    found.update(torch_api.mutated_inputs(graph))
    return [node for node in graph.nodes if node.op == "placeholder" and node in found]


def _sources(values: Iterable[Any]) -> set[fx.Node]:
    """All nodes that some values are made of, themselves included."""
    pending = [value for value in values if isinstance(value, fx.Node)]
    found: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


def faults(forward: fx.GraphModule, backward: fx.GraphModule) -> Iterator[str]:
    """Why a cut would train on other numbers than the forward computed, in words."""
    ran = {node.name: node for node in forward.graph.nodes}
    written = {node.name for node in _written_by_forward(forward.graph)}
    for node in backward.graph.nodes:
        if node.op == "placeholder" and node.name in written:
            yield f"the backward reads `{node.name}`, which the forward has written by then"
        elif node.name in ran and node.op == "call_function" and (draws(node) or writes(node)):
            verb = "draw" if draws(node) else "write"
            yield f"`{node.target}` would {verb} a second time in the backward"
