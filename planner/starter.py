"""The plan that `sgplan init` writes: what was captured as comments, the defaults as clauses.

The text is valid and in canonical form. Every clause in it says what happens without it, so that a
reader changes one word at a time. Knows facts only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from sgplan.grammar.blocks import RESERVED
from sgplan.planner.facts import Facts, RootFact
from sgplan.planner.families import FAMILIES
from sgplan.planner.graphs import as_written, calls_of
from sgplan.planner.ops_listing import by_name
from sgplan.planner.units import counted, human_bytes

WIDTH = 100
SHOWN_MODULES = 8
SHOWN_OPS = 8

_NUMBER = re.compile(r"\A\d+\Z")
_LET_NAME = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")


def starter_plan(facts: Facts) -> str:
    """A commented starter plan for the captured script."""
    paragraphs = (
        list(_purpose(facts)),
        ["sgplan 1"],
        *(list(_about(root, facts)) for root in facts.roots),
        _lets(facts),
        _clauses(facts),
        _unwritten(facts),
    )
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def _purpose(facts: Facts) -> Iterator[str]:
    names = ", ".join(root.cls for root in facts.roots) or "a script that called no model"
    yield f"# Starter plan for {names}."
    ranks = counted(facts.world, "rank")
    yield f"# Captured on {ranks}, device {facts.device}, torch {facts.torch}."
    yield "# The clauses below state what happens without them: change a word, then `sgplan plan`."


def _about(root: RootFact, facts: Facts) -> Iterator[str]:
    """What was captured of one root, a comment line each."""
    size = sum(parameter.nbytes for parameter in root.parameters)
    count = counted(len(root.parameters), "trainable parameter")
    yield f"# {root.name}: {root.cls}, {count}, {human_bytes(size)}"
    yield from _wrapped("modules", _stars(path for path, _ in root.modules if path))
    yield from _wrapped("inputs", _inputs(root, facts))
    own = [
        call.forward
        for call in calls_of(as_written(facts))
        if call.root == root.name and not call.variant
    ]
    ops = [op for graph in own for op in graph.ops]
    common = sorted(by_name(ops).items(), key=lambda item: (-len(item[1]), item[0]))
    yield from _wrapped("ops", [f"{name} ×{len(same)}" for name, same in common[:SHOWN_OPS]])
    families = Counter(family for op in ops for family in op.families)
    yield from _wrapped("families", [f"{f} ×{families[f]}" for f in FAMILIES if families[f]])


def _inputs(root: RootFact, facts: Facts) -> list[str]:
    """`x 8x128`, `?` for a dim that may vary."""
    calls = [
        call for call in calls_of(as_written(facts)) if call.root == root.name and not call.variant
    ]
    return [
        f"{name} {'x'.join('?' if size is None else str(size) for size in shape) or 'scalar'}"
        for call in calls
        for name, shape in zip(call.forward.inputs, call.forward.input_shapes, strict=False)
    ]


def _stars(paths: Iterable[str]) -> list[str]:
    """Module paths with their numbers starred, so that equal blocks stand once."""
    starred = (
        ".".join("*" if _NUMBER.match(part) else part for part in path.split(".")) for path in paths
    )
    found = list(dict.fromkeys(starred))
    more = [f"and {len(found) - SHOWN_MODULES} more"] if len(found) > SHOWN_MODULES else []
    return [*found[:SHOWN_MODULES], *more]


def _wrapped(title: str, items: Iterable[str]) -> Iterator[str]:
    """`#   title: a, b, c`, cut into comment lines of at most `WIDTH`."""
    line = f"#   {title}: "
    words = list(items)
    for place, item in enumerate(words):
        text = item if place == len(words) - 1 else f"{item}, "
        if len(line + text.rstrip()) > WIDTH:
            yield line.rstrip()
            line = "#     "
        line += text
    if words:
        yield line.rstrip()


def _lets(facts: Facts) -> list[str]:
    """A name for each kind of repeated module, ready to be used by a rule."""
    globs: dict[str, str] = {}
    for root in facts.roots:
        for starred in _stars(path for path, _ in root.modules if path):
            name = starred.split(".")[0]
            repeated = starred.count(".") == 1 and starred.endswith(".*")
            if repeated and _LET_NAME.match(name):
                globs.setdefault(f"my_{name}" if name in RESERVED else name, starred)
    return [f'let {name} = "{glob}"' for name, glob in globs.items()]


def _clauses(facts: Facts) -> list[str]:
    """One-line blocks, names padded so that the braces align."""
    blocks = [("mesh", "data = rest"), ("capture", "engine = auto")]
    if _has_ddp(facts):
        blocks.append(("sync", "overlap = prefer  wire = as_written"))
    if facts.optimizers:
        blocks.append(("update", "optimizer = as_written"))
    width = max(len(name) for name, _ in blocks)
    return [f"{name.ljust(width)} {{ {attributes} }}" for name, attributes in blocks]


def _unwritten(facts: Facts) -> list[str]:
    """Clauses that would win over an argument of the script, so they are only shown."""
    shown = [
        ("graph = whole", "capture", "`fullgraph=` of torch.compile"),
        ("dynamic = on", "capture", "`dynamic=` of torch.compile"),
    ]
    if _has_ddp(facts):
        shown.append(("bucket = 25MiB", "sync", "`bucket_cap_mb=` of DDP"))
    return [
        "# Not written above, because each wins over an argument of the script:",
        *(f"#   {attribute:14}  in {block:7}  over {wins}" for attribute, block, wins in shown),
    ]


def _has_ddp(facts: Facts) -> bool:
    return any(root.kind == "ddp" for root in facts.roots)
