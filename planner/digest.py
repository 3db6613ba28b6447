"""Canonical digests: what a program was made from, and what ranks must agree on.

Digests are SHA-256 in hex; `short` is for eyes. The contract is text, one fact a line, so that the
first difference between two ranks can be named instead of two unequal numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from sgplan import __version__
from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts, ParameterFact, RootFact
from sgplan.planner.program import Bucket

# Raised when instructions or layout change meaning, so that unequal versions never talk.
CONTRACT_VERSION = 1


def sha(lines: Iterable[str]) -> str:
    """The digest of some lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def short(digest: str) -> str:
    """Eight characters of a digest, enough to tell two apart by eye."""
    return digest[:8]


def parameters_digest(roots: Iterable[RootFact]) -> str:
    """Digest of the ordered trainable parameters of all roots: names, shapes, strides, dtypes."""
    return sha(line for root in roots for line in _parameter_lines(root.name, root.parameters))


def modules_digest(roots: Iterable[RootFact]) -> str:
    """Digest of module paths and classes."""
    return sha(f"{root.name} {path} {cls}" for root in roots for path, cls in root.modules)


def graphs_digest(roots: Iterable[RootFact]) -> str:
    """Digest of the captured graphs, whatever order they were compiled in."""
    return sha(sorted(f"{r.name} {g.direction} {g.digest}" for r in roots for g in r.graphs))


def contract_text(plan: Plan, facts: Facts, root: RootFact, buckets: Sequence[Bucket]) -> list[str]:
    """What all ranks must agree on before `root` reduces, one fact a line.

    Everything here is known when the root is found: no graph, no rank number.
    """
    mesh = " ".join(f"{axis}={size}" for axis, size in plan.mesh.axes)
    return [
        f"contract {CONTRACT_VERSION}",
        *(f"plan {setting}" for setting in plan.settings()),
        f"plan {plan.digest}",
        f"world {facts.world}",
        f"mesh {mesh}",
        f"torch {facts.torch}",
        f"sgplan {__version__}",
        f"root {root.name} with {len(root.parameters)} parameters and {len(buckets)} buckets",
        *_parameter_lines(root.name, root.parameters),
        *(_bucket_line(bucket) for bucket in buckets),
    ]


def contract_digest(texts: Iterable[Sequence[str]]) -> str:
    """One digest over the contracts of all roots."""
    return sha(line for text in texts for line in text)


def first_difference(mine: Sequence[str], other: Sequence[str]) -> str:
    """The first line in which two contracts differ, both values; empty when they are equal.

    A line that only one of them has stands against nothing.
    """
    for here, there in zip_longest(mine, other):
        if here != there:
            if here is not None and here not in other and there in mine:
                there = None
            elif there is not None and there not in mine and here in other:
                here = None
            return f"{_shown(here)} here, {_shown(there)} there"
    return ""


def _shown(line: str | None) -> str:
    return "nothing" if line is None else f"`{line}`"


def _parameter_lines(root: str, parameters: Iterable[ParameterFact]) -> Iterable[str]:
    for place, p in enumerate(parameters):
        layout = f"{_sizes(p.shape)} strides {_sizes(p.strides)}"
        yield f"parameter {place} of {root}: {p.name} {p.dtype} {p.device} {layout}"


def _bucket_line(bucket: Bucket) -> str:
    slots = " ".join(f"{slot.index}@{slot.offset}" for slot in bucket.slots)
    head = f"bucket {bucket.name} of {bucket.root}: {bucket.dtype} wire {bucket.wire}"
    return f"{head} {bucket.numel} elements, slots {slots}"


def _sizes(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes)) or "scalar"
