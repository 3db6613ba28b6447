"""The precision audit: formats from the graphs, clauses by name, modules folded where equal."""

from __future__ import annotations

from dataclasses import replace

from sgplan.planner.audit import AuditRow, audit, audit_lines
from sgplan.planner.facts import Facts, GraphFact, OpFact
from sgplan.planner.families import families_of
from sgplan.planner.listing import render_plan
from sgplan.planner.listing_json import plan_json
from sgplan.planner.pipeline import lower

from .build import FORWARD, facts, plan, root

KEEP = "keep_fp32 = [norm, softmax, loss]"
MAIN = f'precision "main" {{ compute = bf16  {KEEP} }}'


def op(origin: str, module: str, reads: str, name: str = "") -> OpFact:
    return OpFact(
        name or origin, module, families_of(name or origin), 0, 0, tuple(reads.split()), (), origin
    )


def graph(*ops: OpFact, stage: int = 0) -> GraphFact:
    return replace(FORWARD, ops=ops, digest=str(stage) * 64, stage=stage)


def captured(*graphs: GraphFact) -> Facts:
    return facts(root("inductor", "in_graph", graphs=graphs))


def rows(text: str, *graphs: GraphFact) -> dict[tuple[str, str, str], AuditRow]:
    found = audit(plan(text), captured(*graphs))
    return {(row.steps, row.family, row.modules): row for row in found}


LOWERED = (
    op("aten.addmm.default", "blocks.0.fc", "bf16"),
    op("aten.addmm.default", "blocks.1.fc", "bf16"),
    op("aten.native_layer_norm.default", "ln", "f32", "aten.var_mean.correction"),
    op("aten.embedding.default", "tok", "f32 int64"),
    op("aten.view.default", "", "bf16"),
)


def test_rows_have_what_the_graph_computes_in() -> None:
    found = rows(MAIN, graph(*LOWERED))
    assert list(found) == [
        ("0..", "norm", "ln"),
        ("0..", "matmul", "blocks.*.fc"),
        ("0..", "embedding", "tok"),
    ]
    matmul = found["0..", "matmul", "blocks.*.fc"]
    assert (matmul.compute, matmul.accumulate, matmul.reduce, matmul.storage) == (
        "bf16", "f32", "f32", "f32",
    )  # fmt: skip
    assert matmul.clause == "precision.main.compute, line 3"
    norm = found["0..", "norm", "ln"]
    assert (norm.compute, norm.clause) == ("f32", "precision.main.keep_fp32, line 3")


def test_a_graph_that_does_not_follow_the_plan_is_not_said_to() -> None:
    found = rows(MAIN, graph(op("aten.addmm.default", "blocks.0.fc", "f32")))
    row = found["0..", "matmul", "blocks.0.fc"]
    assert row.compute == "f32"
    assert row.clause == "precision.main.compute, line 3: its call stays in f32"


def test_what_an_op_is_decomposed_to_may_compute_in_float32_inside() -> None:
    name = "aten.gelu.default"
    inside = (
        op(name, "act", "bf16", "prims.convert_element_type.default"),
        op(name, "act", "f32", "aten.erf.default"),
        op(name, "act", "f32", "prims.convert_element_type.default"),
    )
    row = rows(MAIN, graph(*inside))["0..", "pointwise", "act"]
    assert row.compute == "bf16 (f32 inside)"
    assert row.clause == "precision.main.compute, line 3"


def test_modules_that_differ_are_not_folded() -> None:
    text = 'precision "one" { in = "blocks.1"  compute = bf16 }'
    wide = op("aten.addmm.default", "blocks.0.fc", "f32")
    found = rows(text, graph(wide, LOWERED[1]))
    assert [(r.modules, r.compute, r.clause) for r in found.values()] == [
        ("blocks.0.fc", "f32", "as written"),
        ("blocks.1.fc", "bf16", "precision.one.compute, line 3"),
    ]


def test_the_softmax_of_attention_is_a_row_and_no_kept_op() -> None:
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    found = rows(MAIN, graph(op(name, "blocks.0.attn", "bf16")))
    assert found["0..", "attention", "blocks.0.attn"].compute == "bf16"
    inside = found["0..", "softmax", "blocks.0.attn"]
    assert (inside.compute, inside.clause) == ("f32", "inside attention")


def test_each_stage_has_rows_of_its_own_graphs() -> None:
    text = (
        'precision "a" { steps = 0..9  compute = fp32 }\n'
        f'precision "b" {{ steps = 10..19  compute = bf16  {KEEP} }}\n'
        'precision "c" { steps = 20..  compute = fp32 }'
    )
    wide = op("aten.addmm.default", "blocks.0.fc", "f32")
    found = rows(text, graph(wide), graph(LOWERED[0], stage=1))
    assert [(r.steps, r.compute) for r in found.values()] == [
        ("0..9 20..", "f32"),
        ("10..19", "bf16"),
    ]


def test_gradients_have_the_format_of_the_wire_and_masters_are_named() -> None:
    text = f"{MAIN}\nsync {{ wire = bf16 }}"
    assert rows(text, graph(LOWERED[0]))["0..", "matmul", "blocks.0.fc"].reduce == "bf16"
    text = 'precision "main" { params = bf16 }'
    low = root("inductor", "in_graph", graphs=(graph(LOWERED[0]),))
    low = replace(low, parameters=tuple(replace(p, dtype="bf16") for p in low.parameters))
    (row,) = audit(plan(text), facts(low))
    assert (row.storage, row.reduce) == ("bf16, master f32", "bf16")


def test_without_the_clause_there_is_no_table() -> None:
    wanted, found = plan(), captured(graph(*LOWERED))
    parts = [(lower(wanted, found), found)]
    assert audit_lines(wanted, found) == []
    assert "precision of" not in render_plan(wanted, parts)
    assert plan_json(wanted, parts)["precision"] == []


def test_the_listing_and_its_machine_form_have_the_table() -> None:
    wanted, found = plan(MAIN), captured(graph(*LOWERED))
    parts = [(lower(wanted, found), found)]
    text = render_plan(wanted, parts)
    assert "precision of model, steps 0.." in text
    assert "`precision.main` computes in bf16" in text
    first = plan_json(wanted, parts)["precision"][0]
    assert (first["family"], first["modules"], first["compute"]) == ("norm", "ln", "f32")
