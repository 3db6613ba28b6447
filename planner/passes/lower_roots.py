"""Turns roots and their captured graphs into graphs and `run` lines.

    eager root      ->   graph model … / forward: run model eager
    compiled root   ->   graph fwd0, bwd0 … / forward: run fwd0 … / backward: run bwd0 …

A compiled root without a capture (not called yet, or nothing in it could be captured) runs its own
Python and is listed so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts, GraphFact, RootFact
from sgplan.planner.graphs import Call, backward_chain, calls_of, finishing, main_calls
from sgplan.planner.origins import asked
from sgplan.planner.program import PHASES, Graph, Instruction, Origin, Phase, Program, Root, Run


@dataclass(frozen=True, slots=True)
class LowerRoots:
    name: ClassVar[str] = "lower_roots"
    needs: ClassVar[frozenset[str]] = frozenset({"buckets"})
    promises: ClassVar[frozenset[str]] = frozenset({"runs"})

    def apply(self, program: Program, plan: Plan, facts: Facts) -> Program:
        calls = calls_of(facts)
        graphs: list[Graph] = []
        forward: list[Instruction] = []
        backward: list[Instruction] = []
        for root in facts.roots:
            origin = asked(plan.capture_of(root.name), "engine")
            if root.engine == "eager" or not main_calls(calls, root.name):
                graphs.append(_eager_graph(root, origin))
                forward.append(Run(root.name, (), (), eager=True, origin=origin))
                continue
            finished = _finished(calls, root, program) if root.path == "in_graph" else {}
            for call in (c for c in calls if c.root == root.name):
                graphs += _graphs(call, finished.get(call.number, ()), origin)
            listed = main_calls(calls, root.name)
            forward += [_run_forward(call, origin) for call in listed]
            # Autograd runs the last region's backward first.
            backward += [_run_backward(c, origin) for c in reversed(listed) if c.backward]
        return replace(
            program,
            roots=tuple(_root(plan, root) for root in facts.roots),
            graphs=tuple(graphs),
            phases=_phases(forward, backward),
        )


def _root(plan: Plan, root: RootFact) -> Root:
    origin = asked(plan.sync_of(root.name), "by")
    return Root(root.name, root.engine, root.path, len(root.parameters), origin)


def _phases(forward: list[Instruction], backward: list[Instruction]) -> tuple[Phase, ...]:
    bodies = {"forward": tuple(forward), "backward": tuple(backward)}
    return tuple(Phase(name, bodies.get(name, ())) for name in PHASES)


def _eager_graph(root: RootFact, origin: Origin) -> Graph:
    """What an eager root costs is known when it was captured for information."""
    main = main_calls(calls_of_root(root), root.name)
    forwards = [call.forward for call in main]
    return Graph(
        root.name,
        root.name,
        "eager",
        flops=sum(g.flops for g in _all_graphs(main)) if main else None,
        bytes=sum(g.bytes for g in _all_graphs(main)) if main else None,
        bytes_saved=sum(g.bytes_saved for g in forwards) if main else None,
        origin=origin,
    )


def calls_of_root(root: RootFact) -> tuple[Call, ...]:
    """The calls of one root on its own, numbered from 0."""
    return calls_of(Facts(rank=0, world=1, torch="", device="", roots=(root,)))


def _all_graphs(calls: tuple[Call, ...]) -> list[GraphFact]:
    pairs = ((call.forward, call.backward) for call in calls)
    return [graph for pair in pairs for graph in pair if graph is not None]


def _finished(
    calls: tuple[Call, ...], root: RootFact, program: Program
) -> dict[int, tuple[str, ...]]:
    own = [bucket for bucket in program.buckets if bucket.root == root.name]
    return finishing(backward_chain(calls, root), own)


def _graphs(call: Call, inside: tuple[str, ...], origin: Origin) -> list[Graph]:
    graphs = [_graph("fwd", call, call.forward, (), origin)]
    if call.backward is not None:
        graphs.append(_graph("bwd", call, call.backward, inside, origin))
    return graphs


def _graph(
    prefix: str, call: Call, fact: GraphFact, buckets: tuple[str, ...], origin: Origin
) -> Graph:
    return Graph(
        name=prefix + call.suffix,
        root=call.root,
        direction=fact.direction,
        region=fact.region,
        digest=fact.digest,
        flops=fact.flops,
        bytes=fact.bytes,
        bytes_saved=fact.bytes_saved if fact.direction == "forward" else None,
        saved_without=fact.saved_without,
        kernels=len(fact.kernels) or None,
        buckets=buckets,
        effects=fact.effects,
        origin=origin,
    )


def _run_forward(call: Call, origin: Origin) -> Run:
    saved = (call.saved,) if call.backward is not None else ()
    return Run(
        f"fwd{call.suffix}", call.forward.inputs, call.forward.outputs + saved, False, origin
    )


def _run_backward(call: Call, origin: Origin) -> Run:
    assert call.backward is not None
    inputs = (call.saved, *call.backward.inputs)
    return Run(f"bwd{call.suffix}", inputs, call.backward.outputs, False, origin)
