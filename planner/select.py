"""What a selector matches in the captured model, and the nearest names when it matches nothing.

Sites are ops of the forward graphs that train, each counted once. Knows facts and selectors; it
does not know what a rule wants to do with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, cast

from sgplan.grammar.diagnostics import Diagnostic, Label, Span
from sgplan.grammar.nearest import joined, nearest
from sgplan.grammar.plan import Block, Let, Pattern, Plan, Selector, Stage
from sgplan.planner.facts import Facts, OpFact
from sgplan.planner.families import FAMILIES
from sgplan.planner.globs import covers, matching
from sgplan.planner.graphs import as_written, calls_of

# Attributes whose strings are module globs.
GLOB_ATTRIBUTES = ("in_", "except_", "cuts", "keep_whole")
NEAREST = 3

_PART = re.compile(r"\.(?![^{]*\})")  # the dots outside of `{0..11}`


@dataclass(frozen=True, slots=True)
class Written:
    """One selector, where the plan has it.

    Attributes:
        owner: `let mlp`, `fuse.bias_gelu.match`.
        required: whether matching nothing is an error.
        backward: whether ops of the backward graphs count too.
    """

    owner: str
    selector: Selector
    span: Span | None
    required: bool = True
    backward: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """What one selector matched.

    Attributes:
        modules: paths the glob names, without their submodules.
        sites: ops selected, under those modules when there is a glob.
    """

    written: Written
    modules: tuple[str, ...]
    sites: tuple[OpFact, ...]

    @property
    def empty(self) -> bool:
        return not (self.modules if self.written.selector.op is None else self.sites)


def module_paths(facts: Facts) -> tuple[str, ...]:
    """Every module path of every root, the roots themselves left out."""
    paths = (path for root in facts.roots for path, _ in root.modules if path)
    return tuple(dict.fromkeys(paths))


def forward_sites(facts: Facts) -> tuple[OpFact, ...]:
    """The ops of the listed forward graphs, variants left out."""
    return tuple(
        op for call in calls_of(as_written(facts)) if call.variant == 0 for op in call.forward.ops
    )


def backward_sites(facts: Facts) -> tuple[OpFact, ...]:
    """The ops of the listed backward graphs."""
    calls = (call for call in calls_of(as_written(facts)) if call.variant == 0)
    return tuple(op for call in calls if call.backward for op in call.backward.ops)


def match_all(plan: Plan, facts: Facts) -> tuple[Match, ...]:
    """Every selector of the plan with what it matches, in the order of the plan's blocks."""
    modules, forward = module_paths(facts), forward_sites(facts)
    both = (*forward, *backward_sites(facts))
    return tuple(
        match(written, modules, both if written.backward else forward)
        for written in selectors_of(plan)
    )


def match(written: Written, modules: Sequence[str], sites: Sequence[OpFact]) -> Match:
    """What one selector matches among these modules and sites."""
    glob, op = written.selector.glob, written.selector.op
    named = () if glob is None else matching(glob, modules)
    inside = [site for site in sites if glob is None or covers(glob, site.module)]
    chosen = [site for site in inside if op is None or selects(op, site)]
    # A bare glob names modules; its ops are not what the plan asked to count.
    return Match(written, named, tuple(chosen) if op is not None else ())


class Op(Protocol):
    """What an op is selected by."""

    @property
    def op(self) -> str: ...

    @property
    def families(self) -> tuple[str, ...]: ...


def selects(op: str, site: Op) -> bool:
    """Whether a family (`norm`), an op (`aten.gelu`) or one overload (`aten.add.Tensor`) fits."""
    if op in FAMILIES:
        return op in site.families
    wanted, found = _split(op), _split(site.op)
    if wanted[2]:
        return wanted == found
    return (wanted[0], wanted[1].rstrip("_")) == (found[0], found[1].rstrip("_"))


def _split(op: str) -> tuple[str, str, str]:
    """Library, name, overload; the overload is empty when none is written."""
    library, _, rest = op.replace("::", ".", 1).partition(".")
    name, _, overload = rest.partition(".")
    return library, name, overload


def selectors_of(plan: Plan) -> Iterator[Written]:
    """Every selector of the plan: of lets, then of blocks."""
    for let in plan.lets:
        for selector in _of_let(let, plan.lets):
            # A plain string may be a path or a label as well as a module.
            is_glob = re.search(r"[*{]", selector.glob or "") is not None
            required = selector.op not in (None, *FAMILIES) or is_glob
            yield Written(f"let {let.name}", selector, let.span, required)
    for block in _blocks(plan):
        for field in fields(block):
            attribute = field.name.rstrip("_")
            for selector in _of_value(field.name, getattr(block, field.name)):
                owner = f"{block.address}.{attribute}"
                ruled = block.kind in ("fuse", "separate")
                required = selector.op not in FAMILIES or ruled
                span = block.origin(attribute) or block.span
                backward = ruled and selector.op not in FAMILIES
                yield Written(owner, selector, span, required, backward)


def _blocks(plan: Plan) -> Iterator[Block]:
    yield from (*plan.fuses, *plan.separates, *plan.operators, plan.partition)
    yield from (*plan.precisions, *plan.recomputes)


def _of_value(name: str, value: object) -> Iterator[Selector]:
    if isinstance(value, Selector):
        yield value
    elif isinstance(value, Pattern):
        yield from (selector for step in value.steps for selector in step)
    elif isinstance(value, Stage):
        yield from (Selector(glob, None) for glob in value.globs)
    elif isinstance(value, tuple):
        for item in cast("tuple[object, ...]", value):
            yield from _of_value(name, item)
    elif isinstance(value, str) and name in GLOB_ATTRIBUTES:
        yield Selector(value, None)
    elif isinstance(value, str) and name == "op":
        yield Selector(None, value)


_ATOM = re.compile(r'(?:"(?P<glob>(?:[^"\\]|\\.)*)"(?:::)?)?(?P<op>[A-Za-z_][\w.:]*)?')


def _of_let(let: Let, lets: Sequence[Let], depth: int = 0) -> Iterator[Selector]:
    """The selectors in a let's text; nothing for numbers, words, lists and calls."""
    values = {other.name: other for other in lets}
    for part in re.split(r"->|\|", let.text):
        atom = _ATOM.fullmatch(part.strip())
        if atom is None or not part.strip():
            continue
        glob, op = atom["glob"], atom["op"]
        if glob is None and op in values and depth < len(lets):
            yield from _of_let(values[op], lets, depth + 1)
        elif op is None or op in FAMILIES or "." in op or "::" in op:
            yield Selector(glob, op)


def problems(plan: Plan, facts: Facts) -> list[Diagnostic]:
    """What is wrong with the plan's selectors against the captured model; notes included."""
    return misses(match_all(plan, facts), facts)


def misses(matches: Iterable[Match], facts: Facts) -> list[Diagnostic]:
    """SG0508 for every selector that matches nothing: an error where it must match, else a note."""
    modules, sites = module_paths(facts), forward_sites(facts)
    return [
        _miss(found, modules, sites) for found in matches if found.empty and _judged(found, sites)
    ]


def _judged(found: Match, sites: Sequence[OpFact]) -> bool:
    """Ops can be missed only where some were captured; an optional plain string is never missed."""
    selector = found.written.selector
    if selector.op is None:
        return found.written.required
    return bool(sites)


def _miss(found: Match, modules: Sequence[str], sites: Sequence[OpFact]) -> Diagnostic:
    written = found.written
    selector = written.selector
    names = [*dict.fromkeys(_split_name(site.op) for site in sites)]
    near = _nearest(selector, modules, names)
    where = f"{len(modules)} modules and {len(names)} kinds of op were captured"
    return Diagnostic(
        "SG0508",
        f"`{selector}` in `{written.owner}` matches nothing",
        None if written.span is None else Label(written.span, "no such module or op was captured"),
        notes=(where,),
        help=f"write {joined(near)}"
        if near
        else "`sgplan plan --ops` lists every module, op and family that was captured",
        severity="error" if written.required else "note",
    )


def _split_name(op: str) -> str:
    library, name, _ = _split(op)
    return f"{library}.{name}" if library in ("aten", "prims") else f"{library}::{name}"


def _nearest(selector: Selector, modules: Sequence[str], ops: Sequence[str]) -> list[str]:
    """Up to three names that the wrong part could mean: the glob when it names no module."""
    if selector.glob is not None and not matching(selector.glob, modules):
        meant = (_meant_glob(selector.glob, path) for path in modules)
        found = [f'"{glob}"' for glob in meant if glob is not None]
    else:
        found = [op for op in ops if selector.op is not None and _is_near(selector.op, op)]
    return [*dict.fromkeys(found)][:NEAREST]


def _meant_glob(glob: str, path: str) -> str | None:
    """The glob with the misspelt parts as in the path; None when a part is not close.

    Parts are compared one by one: what two long paths share makes their ends no closer.
    """
    written, found = _PART.split(glob), path.split(".")
    meant = [
        part if matching(part, (name,)) else nearest(part, (name,))
        for part, name in zip(written, found, strict=False)
    ]
    if len(written) != len(found) or None in meant:
        return None
    return ".".join(part for part in meant if part is not None)


def _is_near(written: str, op: str) -> bool:
    """Whether the op is meant, its library, which they often share, left out of it."""
    (library, name, _), (_, known, _) = _split(written), _split(op)
    return nearest(name if library else written, (known,)) is not None
