"""The precision audit: which formats the ops of every stage have, and which clause asked for them.

Formats are read from the compiled graphs, never from the plan; the clause is found by the names of
the ops. Only models with `precision` blocks have rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts, GraphFact, OpFact, RootFact
from sgplan.planner.families import families_of, is_cast, is_layout
from sgplan.planner.precision import Setting, Settings, stages_of
from sgplan.planner.words import columns

# An op of several families stands under the first of these.
_ORDER = ("attention", "loss", "softmax", "norm", "conv", "matmul", "embedding", "dropout")
_ORDER = (*_ORDER, "random", "reduction", "pointwise")
# Sums over elements: library calls and Inductor's loops add 16-bit values up in float32.
_SUMMING = frozenset({"attention", "loss", "softmax", "norm", "conv", "matmul", "reduction"})
_FLOATS = ("f64", "f32", "bf16", "f16")
_SHORT = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """The formats of one op family in one module, or in all modules of a glob that agree.

    Attributes:
        steps: the stage, as ranges.
        modules: a path, or a glob with `*` for numbers; empty for the root itself.
        compute: float formats that the ops read; `bf16 (f32 inside)` of an op in bf16 that the
            compiler made of others in float32.
        accumulate: in which sums are kept; empty where nothing is summed.
        reduce: of gradients between ranks; empty where the module has no parameters.
        storage: of the module's parameters, with their masters.
        clause: who asked for it: `precision.main.compute, line 4`, or what it is.
    """

    root: str
    steps: str
    family: str
    modules: str
    compute: str
    accumulate: str
    reduce: str
    storage: str
    clause: str


def audit(plan: Plan, facts: Facts) -> tuple[AuditRow, ...]:
    """The rows of every root and stage, by family."""
    return tuple(row for root in facts.roots for row in _of_root(plan, root))


def audit_lines(plan: Plan, facts: Facts) -> list[str]:
    """The table that `sgplan plan` prints; empty without `precision` blocks."""
    lines: list[str] = []
    stages: dict[tuple[str, str], list[AuditRow]] = {}
    for row in audit(plan, facts):
        stages.setdefault((row.root, row.steps), []).append(row)
    for (root, steps), rows in stages.items():
        head = ["  family", "modules", "compute", "accumulate", "reduce", "storage", "clause"]
        lines += [""] if lines else []
        lines += [f"precision of {root}, steps {steps}", *columns([head, *map(_cells, rows)])]
    return lines


def _cells(row: AuditRow) -> list[str]:
    return [
        f"  {row.family}",
        row.modules or "(root)",
        row.compute,
        row.accumulate or "-",
        row.reduce or "-",
        row.storage or "-",
        row.clause,
    ]


def _of_root(plan: Plan, root: RootFact) -> Iterator[AuditRow]:
    stages = stages_of(plan, root.name)
    if not stages.blocks:
        return
    for place, settings in enumerate(stages.distinct()):
        steps = " ".join(map(str, stages.steps_of(settings)))
        graphs = [g for g in root.graphs if g.stage == place and g.direction == "forward"]
        yield from _folded(_rows(plan, root, settings, steps, graphs))


def _rows(
    plan: Plan, root: RootFact, settings: Settings, steps: str, graphs: Iterable[GraphFact]
) -> list[AuditRow]:
    found: dict[tuple[str, str], list[OpFact]] = {}
    for graph in graphs:
        for op in graph.ops:
            if family := _family(op):
                found.setdefault((family, op.module), []).append(op)
    rows: list[AuditRow] = []
    for (family, module), ops in found.items():
        formats = _read([op for op in ops if not is_cast(op.op)])
        if not formats:
            continue
        # What a 16-bit op is decomposed to may compute in float32 between two casts of its own.
        edges = [dtype for dtype in _read(ops) if dtype not in formats]
        row = AuditRow(
            root.name,
            steps,
            family,
            module,
            "+".join(edges) + f" ({'+'.join(formats)} inside)" if edges else "+".join(formats),
            _accumulated(family, formats),
            _reduced(plan, root, module),
            _stored(plan, root, module),
            _clause(plan, settings, ops, [*formats, *edges]),
        )
        rows.append(row)
        if family == "attention":
            rows.append(
                replace(
                    row,
                    family="softmax",
                    compute=_wide(formats),
                    accumulate=_wide(formats),
                    clause="inside attention",
                )
            )
    return rows


def _family(op: OpFact) -> str:
    """Of the op that the script called; empty for views and casts."""
    name = op.origin or op.op
    if is_layout(name) or is_cast(name):
        return ""
    families = families_of(name)
    return next((family for family in _ORDER if family in families), "other")


def _read(ops: Iterable[OpFact]) -> list[str]:
    read = {dtype for op in ops for dtype in op.reads}
    return [dtype for dtype in _FLOATS if dtype in read]


def _accumulated(family: str, formats: Sequence[str]) -> str:
    return _wide(formats) if family in _SUMMING else ""


def _wide(formats: Sequence[str]) -> str:
    return "f64" if "f64" in formats else "f32"


def _reduced(plan: Plan, root: RootFact, module: str) -> str:
    own = _formats(root, module)
    if not own or root.path == "none":
        return ""
    wire = plan.sync_of(root.name).wire
    return own if wire == "as_written" else _SHORT[wire]


def _stored(plan: Plan, root: RootFact, module: str) -> str:
    own = _formats(root, module)
    low = "bf16" in own or "f16" in own
    return f"{own}, master f32" if low and plan.storage_of(root.name)[1] else own


def _formats(root: RootFact, module: str) -> str:
    own = (p.dtype for p in root.parameters if p.name.rpartition(".")[0] == module)
    return "+".join(dict.fromkeys(own))


def _clause(plan: Plan, settings: Settings, ops: Sequence[OpFact], formats: Sequence[str]) -> str:
    found: list[str] = []
    for op in ops:
        called = replace(op, op=op.origin or op.op, families=families_of(op.origin or op.op))
        setting = next((s for s in settings if s.takes(called, op.module)), None)
        found.append("as written" if setting is None else _asked(plan, setting, called, formats))
    return "; ".join(dict.fromkeys(found))


def _asked(plan: Plan, setting: Setting, op: OpFact, formats: Sequence[str]) -> str:
    block = next(b for b in plan.precisions if b.address == setting.address)
    lowers = setting.compute in ("bf16", "fp16")
    if lowers and "embedding" in op.families:
        return "rows are cast where they are read"
    name = "keep_fp32" if lowers and setting.keeps(op, op.module) else "compute"
    span = block.origin(name)
    text = f"{block.address}.{name}" + ("" if span is None else f", line {span.line}")
    wanted = "f32" if name == "keep_fp32" else _SHORT.get(setting.compute, "")
    if wanted and wanted not in formats:
        return f"{text}: its call stays in {'+'.join(formats)}"
    return text


def _folded(rows: Sequence[AuditRow]) -> list[AuditRow]:
    """Modules that differ in numbers only, and agree in all formats, as one row."""
    alike: dict[tuple[str, str], list[AuditRow]] = {}
    for row in rows:
        alike.setdefault((row.family, _NUMBER.sub("*", row.modules)), []).append(row)
    found: list[AuditRow] = []
    for (_, glob), group in alike.items():
        same = {replace(row, modules=glob) for row in group}
        found += list(same) if len(same) == 1 and len(group) > 1 else group
    place = {family: number for number, family in enumerate(_ORDER)}
    return sorted(found, key=lambda row: place.get(row.family, len(place)))
