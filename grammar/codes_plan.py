"""Codes of what blocks mean to one another, found without a graph: SG03xx to SG08xx."""

from __future__ import annotations

from sgplan.grammar.code import Code, plan


def _cut(stages: int, partition: str) -> str:
    """A plan with a pipeline and this `partition` block."""
    mesh = f"mesh {{ pipe = {stages} }}\nschedule {{ microbatches = 8 }}"
    return plan(f"{mesh}\npartition {partition}")


PLAN_CODES: tuple[Code, ...] = (
    Code(
        "SG0301",
        "mesh that does not fit the world",
        "The axes of the mesh multiply to the number of ranks. `data = rest` takes what the other "
        "axes leave.",
        plan("mesh { data = 4 }"),
        plan("mesh { data = rest }"),
        world=6,
    ),
    Code(
        "SG0302",
        "ranks that do not spread over the hosts",
        "Every host holds the same number of ranks.",
        plan("mesh { data = 4  hosts = 3 }"),
        plan("mesh { data = 4  hosts = 2 }"),
    ),
    Code(
        "SG0304",
        "pin to a stage that does not exist",
        "Stages are counted from 0 to the size of axis `pipe` less one.",
        _cut(2, '{ pin = stage(2, "head") }'),
        _cut(2, '{ pin = stage(1, "head") }'),
    ),
    Code(
        "SG0305",
        "number of cuts that does not fit the stages",
        "With `by = manual` a stage starts at every module named in `cuts`, and the first stage at "
        "the start of the model: one cut less than there are stages.",
        _cut(3, '{ by = manual  cuts = ["layers.4"] }'),
        _cut(3, '{ by = manual  cuts = ["layers.4", "layers.8"] }'),
    ),
    Code(
        "SG0306",
        "module pinned to two stages",
        "A module belongs to one stage.",
        _cut(2, '{ pin = [stage(0, "tok"), stage(1, "tok")] }'),
        _cut(2, '{ pin = [stage(0, "tok"), stage(1, "head")] }'),
    ),
    Code(
        "SG0307",
        "core named twice",
        "A core serves one rank.",
        plan("host { cores = [0..3, 2] }"),
        plan("host { cores = [0..3, 4] }"),
    ),
    Code(
        "SG0401",
        "pipeline without microbatches",
        "A mesh with several stages needs a `schedule` that says how many microbatches a step has; "
        "the number changes memory and speed, so none is assumed.",
        plan("mesh { pipe = 2 }"),
        plan("mesh { pipe = 2 }\nschedule { microbatches = 4 }"),
    ),
    Code(
        "SG0402",
        "fewer microbatches than stages",
        "Some stages would never work at the same time as others.",
        plan("mesh { pipe = 4 }\nschedule { microbatches = 2 }"),
        plan("mesh { pipe = 4 }\nschedule { microbatches = 8 }"),
    ),
    Code(
        "SG0403",
        "interleaving that does not come out even",
        "An interleaved schedule goes round the stages with groups of microbatches: their number "
        "is a multiple of the number of stages.",
        plan("mesh { pipe = 4 }\nschedule { kind = interleaved(2)  microbatches = 6 }"),
        plan("mesh { pipe = 4 }\nschedule { kind = interleaved(2)  microbatches = 8 }"),
    ),
    Code(
        "SG0520",
        "in-graph reductions without a graph",
        "`by = in_graph` puts the reductions into the backward graph, and the eager engine makes "
        "no graph.",
        plan("capture { engine = eager }\nsync { by = in_graph }"),
        plan("capture { engine = inductor }\nsync { by = in_graph }"),
    ),
    Code(
        "SG0521",
        "block without a graph of the plan",
        "Which ops share a kernel, in which format they compute and what the backward computes "
        "again is settled in captured graphs. The eager engine makes none, and stock DDP keeps "
        "to its own.",
        plan('capture { engine = eager }\nfuse "n" { match = norm -> aten.gelu }'),
        plan('capture { engine = inductor }\nfuse "n" { match = norm -> aten.gelu }'),
    ),
    Code(
        "SG0522",
        "compiled step that does not exist",
        "With `when = in_backward` every parameter is updated by itself, as soon as its gradient "
        "is reduced; there is no step of all parameters that could be compiled.",
        plan("update { optimizer = compiled  when = in_backward }"),
        plan("update { optimizer = fused  when = in_backward }"),
    ),
    Code(
        "SG0601",
        "two rules for the same ops",
        "An op belongs to one rule. Where two select the same ops, a `priority` decides.",
        plan('fuse "a" { match = bias -> aten.gelu }\nseparate "b" { match = bias -> aten.gelu }'),
        plan(
            'fuse "a" { match = bias -> aten.gelu  priority = 1 }\n'
            'separate "b" { match = bias -> aten.gelu }'
        ),
    ),
    Code(
        "SG0602",
        "rule that leaves out all that it names",
        "Every module of `in` stands in `except` too: the rule can select nothing.",
        plan('fuse "a" { match = norm  in = "layers.*"  except = "layers.*" }'),
        plan('fuse "a" { match = norm  in = "layers.*"  except = "layers.0" }'),
    ),
    Code(
        "SG0604",
        "admission of an op of torch",
        "`operator` admits ops from outside; torch's own are known.",
        plan('operator "gelu" { op = aten.gelu }'),
        plan('operator "scan" { op = mylib::scan }'),
    ),
    Code(
        "SG0605",
        "op admitted twice",
        "One `operator` block an op.",
        plan('operator "a" { op = mylib::scan }\noperator "b" { op = mylib::scan }'),
        plan('operator "a" { op = mylib::scan }\noperator "b" { op = mylib::sort }'),
    ),
    Code(
        "SG0613",
        "separation of one op",
        "`separate` keeps two neighbours along the data flow out of one kernel, so its pattern has "
        "at least two steps.",
        plan('separate "n" { match = norm }'),
        plan('separate "n" { match = aten.add -> norm }'),
    ),
    Code(
        "SG0701",
        "precision rules that overlap",
        "Two `precision` blocks for the same modules and ops hold for the same step. Ranges "
        "include both ends, so `0..200` and `200..` share step 200.",
        plan('precision "a" { steps = 0..200  compute = fp32 }\nprecision "b" { steps = 200.. }'),
        plan('precision "a" { steps = 0..199  compute = fp32 }\nprecision "b" { steps = 200.. }'),
    ),
    Code(
        "SG0702",
        "steps without a precision rule",
        "Between two `precision` blocks lie steps that neither names. They run in the formats of "
        "the script. This is a note, because it may be meant.",
        plan('precision "a" { steps = 0..99 }\nprecision "b" { steps = 200.. }'),
        plan('precision "a" { steps = 0..199 }\nprecision "b" { steps = 200.. }'),
    ),
    Code(
        "SG0703",
        "two guards on one value",
        "A value has one guard. Where two watch the same, a `priority` decides.",
        plan(
            'guard "a" { on = input[0].shape[0]  allow = [32] }\n'
            'guard "b" { on = input[0].shape[0]  allow = [64] }'
        ),
        plan('guard "a" { on = input[0].shape[0]  allow = [32, 64] }'),
    ),
    Code(
        "SG0705",
        "guard with the wrong kind of values",
        "A guard on `shape` allows sizes, a guard on `dtype` types, a guard on `device` devices, a "
        "guard on an argument or an attribute numbers, quoted words, and `on` or `off`.",
        plan('guard "type" { on = input[*].dtype  allow = [32] }'),
        plan('guard "type" { on = input[*].dtype  allow = [float32] }'),
    ),
    Code(
        "SG0706",
        "two measures of recomputation",
        "`memory` and `every` both say how much is computed again.",
        plan('recompute { in = "layers.*"  memory = 50%  every = 2modules }'),
        plan('recompute { in = "layers.*"  memory = 50% }'),
    ),
    Code(
        "SG0707",
        "padding without a limit",
        "`pad` pads an input to the next allowed size, so there must be a largest one.",
        plan('guard "length" { on = input[0].shape[1]  allow = 128..  otherwise = pad(with = 0) }'),
        plan(
            'guard "length" { on = input[0].shape[1]  allow = [128, 256]  '
            "otherwise = pad(with = 0) }"
        ),
    ),
    Code(
        "SG0708",
        "recomputation of nothing",
        "`memory` is the share of what would be saved without the rule; at `100%` there is nothing "
        "to compute again.",
        plan('recompute { in = "layers.*"  memory = 100% }'),
        plan('recompute { in = "layers.*"  memory = 50% }'),
    ),
    Code(
        "SG0711",
        "modules that are counted and not named",
        "`every` counts the modules that `in` names, in the order in which they run: without `in` "
        "there is nothing to count.",
        plan("recompute { every = 2modules }"),
        plan('recompute { in = "layers.*"  every = 2modules }'),
    ),
    Code(
        "SG0720",
        "padding of something that has no size",
        "`pad` enlarges one argument along one dim, so the guard must watch the size of one: not a "
        "type, a value, an attribute or all tensors at once.",
        plan('guard "all" { on = input[*].shape[0]  allow = [8]  otherwise = pad(with = 0) }'),
        plan('guard "all" { on = input[0].shape[0]  allow = [8]  otherwise = pad(with = 0) }'),
    ),
    Code(
        "SG0801",
        "replay without a checkpoint",
        "`resume = replay`, the default of `recover`, goes on from the newest checkpoint, and the "
        "plan makes none. `resume = rerun` needs none: it executes every step again.",
        plan("recover { restarts = 3 }"),
        plan("recover { restarts = 3 }\ncheckpoint { every = 50steps }"),
    ),
    Code(
        "SG0802",
        "timeout shorter than a heartbeat",
        "A rank that is silent for `timeout` is called dead; it speaks once a `heartbeat`.",
        plan("recover { resume = rerun  heartbeat = 10s  timeout = 5s }"),
        plan("recover { resume = rerun  heartbeat = 1s  timeout = 5s }"),
    ),
)
