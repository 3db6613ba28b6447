"""Small facts and plans, so that a test shows only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from sgplan.grammar.check import check_text
from sgplan.grammar.plan import Plan, PlanFile
from sgplan.planner.buckets import contiguous
from sgplan.planner.facts import (
    Engine,
    Facts,
    GradientFact,
    GraphFact,
    MissFact,
    OpFact,
    OptimizerFact,
    ParameterFact,
    Path,
    RootFact,
)
from sgplan.planner.families import families_of

ITEMSIZE = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def plan_file(body: str = "") -> PlanFile:
    """A checked plan; the test fails on any diagnostic."""
    found, problems = check_text(f"sgplan 1\n\n{body}\n", "plan.sgplan")
    assert found is not None, problems
    assert not problems
    return found


def plan(body: str = "", world: int = 2) -> Plan:
    """A plan with a digest that goldens can hold."""
    return replace(plan_file(body).resolve(world, "cpu"), digest="d" * 64)


def parameter(name: str, *shape: int, dtype: str = "f32") -> ParameterFact:
    return ParameterFact(name, shape, contiguous(shape), dtype, "cpu", ITEMSIZE[dtype])


# An embedding tied to the head, two blocks of one linear layer each, a norm: 7 gradients.
GPT_PARAMETERS = (
    parameter("tok.weight", 64, 8),
    parameter("blocks.0.fc.weight", 32, 8),
    parameter("blocks.0.fc.bias", 32),
    parameter("blocks.1.fc.weight", 32, 8),
    parameter("blocks.1.fc.bias", 32),
    parameter("ln.weight", 8),
    parameter("ln.bias", 8),
)
GPT_MODULES = (
    ("", "GPT"),
    ("tok", "Embedding"),
    ("blocks", "ModuleList"),
    ("blocks.0", "Block"),
    ("blocks.0.fc", "Linear"),
    ("blocks.1", "Block"),
    ("blocks.1.fc", "Linear"),
    ("ln", "LayerNorm"),
)


def op(name: str, module: str, flops: int = 0, nbytes: int = 0) -> OpFact:
    return OpFact(name, module, families_of(name), flops, nbytes)


FORWARD = GraphFact(
    direction="forward",
    digest="f" * 64,
    shapeless_digest="e" * 64,
    region="GPT.forward",
    inputs=("x",),
    outputs=("logits",),
    ops=(
        op("aten.embedding.default", "tok", 512, 6_000),
        op("aten.addmm.default", "blocks.0.fc", 40_000_000, 2_000_000),
        op("aten.gelu.default", "blocks.0", 2_000, 16_000),
        op("aten.addmm.default", "blocks.1.fc", 40_000_000, 2_000_000),
        op("aten.gelu.default", "blocks.1", 2_000, 16_000),
        op("aten.native_layer_norm.default", "ln", 5_000, 9_000),
        op("aten.mm.default", "", 40_000_000, 2_000_000),
    ),
    bytes_saved=3 * 1024 * 1024,
    input_shapes=((8, 128),),
)
_BACKWARD_OPS = (
    op("aten.mm.default", "", 80_000_000, 4_000_000),
    op("aten.native_layer_norm_backward.default", "ln", 9_000, 20_000),
    op("aten.mm.default", "blocks.1.fc", 40_000_000, 2_000_000),
    op("aten.mm.default", "blocks.1.fc", 40_000_000, 2_000_000),
    op("aten.sum.dim_IntList", "blocks.1.fc", 400, 3_000),
    op("aten.mm.default", "blocks.0.fc", 40_000_000, 2_000_000),
    op("aten.mm.default", "blocks.0.fc", 40_000_000, 2_000_000),
    op("aten.sum.dim_IntList", "blocks.0.fc", 400, 3_000),
    op("aten.embedding_dense_backward.default", "tok", 512, 6_000),
)
_POSITIONS = {
    "ln.weight": 1,
    "ln.bias": 1,
    "blocks.1.fc.weight": 3,
    "blocks.1.fc.bias": 4,
    "blocks.0.fc.weight": 6,
    "blocks.0.fc.bias": 7,
    "tok.weight": 8,
}
BACKWARD = GraphFact(
    direction="backward",
    digest="b" * 64,
    shapeless_digest="a" * 64,
    region="GPT.forward",
    inputs=("dlogits",),
    outputs=("grads",),
    ops=_BACKWARD_OPS,
    gradients=tuple(
        GradientFact(name, place, _BACKWARD_OPS[place].op, _BACKWARD_OPS[place].module)
        for name, place in _POSITIONS.items()
    ),
    heavy_after=(0, 2, 3, 5, 6),
)


def root(
    engine: Engine = "inductor",
    path: Path = "in_graph",
    *,
    name: str = "model",
    parameters: Sequence[ParameterFact] = GPT_PARAMETERS,
    graphs: Sequence[GraphFact] = (FORWARD, BACKWARD),
    misses: Sequence[MissFact] = (),
    kind: Literal["ddp", "compiled", "module"] = "ddp",
) -> RootFact:
    return RootFact(
        name=name,
        cls="train:GPT",
        kind=kind,
        engine=engine,
        path=path,
        why="the script compiles it",
        parameters=tuple(parameters),
        modules=GPT_MODULES,
        graphs=tuple(graphs),
        misses=tuple(misses),
    )


def facts(*roots: RootFact, rank: int = 0, world: int = 2) -> Facts:
    return Facts(
        rank=rank,
        world=world,
        torch="2.13.0",
        device="cpu",
        roots=roots or (root(),),
        optimizers=(OptimizerFact("AdamW", 1104, "as_written"),),
    )


def fused(found: Facts) -> Facts:
    """The same script with its optimizer made fused."""
    return replace(found, optimizers=(OptimizerFact("AdamW", 1104, "fused"),))
