"""Codes that no plan alone can raise: found against the captured graph, or while a job runs."""

from __future__ import annotations

from sgplan.grammar.code import Code

RUN_CODES: tuple[Code, ...] = (
    Code(
        "SG0501",
        "the stock path keeps this model",
        "The script uses something that only stock DDP does (a communication hook, `join`, "
        "`static_graph`, sparse gradients, …), so its gradients are reduced by stock DDP. Training "
        "is right; what the plan says of buckets does not hold for this model. A note, not an "
        "error.",
        found="run",
    ),
    Code(
        "SG0502",
        "a bucket cannot overlap",
        "The plan says `overlap = required`, and behind the start of this bucket's reduction no "
        "matmul or convolution is left that could hide it. Smaller buckets start earlier; the last "
        "bucket of a backward is exempt.",
        found="graph",
    ),
    Code(
        "SG0503",
        "graph break under `graph = whole`",
        "The plan requires the region to be one graph, and the compiler had to break it. Change "
        "the named line of the script, or write `graph = prefer`.",
        found="graph",
    ),
    Code(
        "SG0504",
        "region not found",
        "`capture.region` names a class or function that the module does not have, or that is "
        "nothing one can call.",
        found="graph",
    ),
    Code(
        "SG0505",
        "nothing captured was called",
        "The script ended and no captured model or function was ever called, so nothing that the "
        "plan says of graphs took effect.",
        found="run",
    ),
    Code(
        "SG0506",
        "recompile budget spent",
        "A region was compiled again as often as `capture.recompiles` allows; from here on it runs "
        "as plain Python. The reasons of the recompiles are listed: make the named size dynamic, "
        "or keep it from varying.",
        found="run",
    ),
    Code(
        "SG0507",
        "`model` block that matches nothing",
        "The script never made that many instances of the class. The models that were found are "
        "listed.",
        found="graph",
    ),
    Code(
        "SG0508",
        "selector that matches nothing",
        "The captured graph has no such module or op. Near names are listed; `sgplan plan --ops` "
        "prints all of them. A family that matches nothing is a note only, except in `fuse` and "
        "`separate`.",
        found="graph",
    ),
    Code(
        "SG0509",
        "optimizer that cannot be fused or compiled",
        "`optimizer = fused` or `compiled` was asked for, and this optimizer has no such form for "
        "its parameters, its arguments or the way it is called. It steps as written. A note, not "
        "an error.",
        found="run",
    ),
    Code(
        "SG0510",
        "internal error: a program that is not legal",
        "A pass of the planner made a program that breaks a rule of programs. This is a fault of "
        "sgplan, not of the plan: the message names the pass, the rule and the listing before it. "
        "Please report it.",
        found="graph",
    ),
    Code(
        "SG0511",
        "internal error: an unsafe program",
        "The check before the first step found that ranks could wait for each other forever, or "
        "that a gradient is lost or reduced twice. Nothing was started. Please report it.",
        found="graph",
    ),
    Code(
        "SG0512",
        "gradient missing",
        "A parameter took no part in the backward on this rank, and the others wait for its "
        "gradient. Pass `find_unused_parameters=True` to DDP if that is meant.",
        found="run",
    ),
    Code(
        "SG0540",
        "internal error: an effect out of order",
        "A pass over a graph moved, lost or doubled a draw of random numbers or a change of "
        "memory, or a reader sees another state of memory than before. This is a fault of sgplan, "
        "not of the plan: the message names the pass, the effect, and the order before and after. "
        "Please report it.",
        found="graph",
    ),
    Code(
        "SG0513",
        "setting that this device cannot follow",
        "The plan asks the compiler for something that the device of the run does not have, such "
        "as CUDA graphs on a CPU. With `required` it is an error, with `prefer` a note.",
        found="run",
    ),
    Code(
        "SG0606",
        "fusion rule that the compiler did not follow",
        "After fusion the schedule does not show what the rule asks for: the ops of a `fuse` site "
        "are spread over several kernels, or those of a `separate` site share one. The site and "
        "the compiler's own reason are named.",
        found="run",
    ),
    Code(
        "SG0607",
        "another number of sites than expected",
        "`expect` counts the places of the script where a rule's pattern occurs. The first one "
        "too many, or a place where the pattern begins and does not go on, is named.",
        found="run",
    ),
    Code(
        "SG0608",
        "fusion rule without a site",
        "Its ops were captured, or not, but nowhere do they follow each other as the pattern says. "
        "A pattern follows the data through views and casts, not through other ops.",
        found="run",
    ),
    Code(
        "SG0609",
        "operator that is not registered",
        "No library in the training process defines the op of an `operator` block when the first "
        "model is entered: its module was not imported, or it is spelled otherwise there.",
        found="run",
    ),
    Code(
        "SG0610",
        "operator without a fake implementation",
        "The compiler traces with fake tensors and asks every op for the shape of its result. "
        "Without a fake implementation the graph breaks at the op.",
        found="run",
    ),
    Code(
        "SG0611",
        "operator whose fake implementation is wrong",
        "On the arguments of the first call the fake result and the real one differ in shape, "
        "dtype or strides. Compiled code would read memory in the wrong way.",
        found="run",
    ),
    Code(
        "SG0612",
        "operator that does not pass its check",
        "torch's `opcheck` ran the op on the arguments of the first call and found a fault, "
        "often a schema that hides a mutation or an alias, or a backward that is not registered.",
        found="run",
    ),
    Code(
        "SG0614",
        "kernel that computes something else",
        "A kernel of `with = triton(…)` is compiled for every architecture and compared with its "
        "reference, and that with the script's own ops, before the first step. What differs, fails "
        "or writes outside of its tensors is not used.",
        found="run",
    ),
    Code(
        "SG0721",
        "value that a guard does not allow",
        "A guard with `otherwise = error` met a value outside `allow`, or a size that is larger "
        "than all that `pad` can pad to. Every rank is stopped before the call runs.",
        found="run",
    ),
    Code(
        "SG0722",
        "spent budget of a guard",
        "A guard with `otherwise = recompile` met more new values than its `budget`, or the run "
        "more than `capture { recompiles }`. Raise it, allow the values, or write `spent = eager`.",
        found="run",
    ),
    Code(
        "SG0723",
        "padding without a proof",
        "Padded rows must change nothing. That is proved op by op on the captured graph: no op may "
        "mix rows, draw random numbers for them, or be unknown to the proof. The first that does "
        "is named.",
        found="run",
    ),
    Code(
        "SG0724",
        "guard on something that is not there",
        "The path of a guard names an argument, a dim, a module or an attribute that the captured "
        "call does not have, or a value that is no number, word or switch.",
        found="run",
    ),
    Code(
        "SG0725",
        "guard that was never asked",
        "No captured call came past the guard: the model it is for was not captured, or is "
        "compiled inside a function of the script.",
        found="run",
    ),
    Code(
        "SG0726",
        "range that is no single graph",
        "The code of the model decides by a value that a guard lets vary over a range, so the "
        "graph that was captured holds for that value only. List the values, or change the code.",
        found="run",
    ),
    Code(
        "SG0730",
        "recomputation that cannot save as little",
        "`memory` is a share of what the graph would save without the block. Random masks, results "
        "of custom ops and what the selected ops read of others have to stay, and they are more "
        "than that. The least that can be saved is named.",
        found="run",
    ),
    Code(
        "SG0731",
        "recomputation that changes nothing",
        "Nothing that the selected ops make is saved for the backward, or no graph with a backward "
        "was captured: the block can have no effect.",
        found="run",
    ),
    Code(
        "SG0732",
        "recomputation that would not repeat the forward",
        "The backward would draw random numbers a second time, write something twice, or read an "
        "input that was written since. sgplan cuts graphs so that this cannot be; that it would is "
        "a fault of ours, or comes of settings of torch that the script has changed.",
        found="run",
    ),
    Code(
        "SG0901",
        "no step ran",
        "The command ended and no optimizer step was seen in any rank: the script only evaluates, "
        "ended early, or trains in a process that sgplan did not reach.",
        found="run",
    ),
    Code(
        "SG0902",
        "sgplan is missing in the training Python",
        "The command starts another Python than the one sgplan is installed in. The message names "
        "it: install sgplan there.",
        found="run",
    ),
    Code(
        "SG0903",
        "launcher or wrapper that is not supported",
        "The script uses FSDP, DeepSpeed, tensor parallelism or `mp.spawn`, whose processes and "
        "parameters sgplan does not plan.",
        found="run",
    ),
    Code(
        "SG0904",
        "rank that is silent",
        "A rank stopped making progress, and the others cannot go on without it. The last "
        "instruction of every rank is listed.",
        found="run",
    ),
    Code(
        "SG0905",
        "rank that left early",
        "A rank ended while others still train: fewer batches, an exception, a kill. The others "
        "were stopped.",
        found="run",
    ),
    Code(
        "SG0906",
        "run folder that was deleted",
        "The run folder was deleted, or another took its place, while the command ran. A training "
        "that has begun does not need it, but what its ranks did from then on is not known: there "
        "is no report, and nothing for `sgplan show`.",
        found="run",
    ),
    Code(
        "SG0733",
        "two precision rules for one op",
        "Two `precision` blocks that hold for the same step select the same op of the captured "
        "graph, and neither has a higher `priority`. Give one of them a priority, or narrow it.",
        found="graph",
    ),
    Code(
        "SG0734",
        "precision that no graph carries out",
        "Casts and the loss scale are made in captured graphs. The model runs eagerly, or stays on "
        "stock DDP with graphs of its own, so the block would be without effect. The reason for "
        "the engine or the path is named.",
        found="run",
    ),
    Code(
        "SG1001",
        "damaged artefact",
        "The `.sgpx` file is not complete or not what it says; it is not used in part.",
        found="run",
    ),
    Code(
        "SG1002",
        "stale artefact",
        "The artefact was planned for something else: another plan text, script, mesh or torch. "
        "The message says which digest differs. `sgplan show` still reads it; plan again to apply.",
        found="run",
    ),
    Code(
        "SG1003",
        "ranks that disagree",
        "The ranks would communicate differently: another plan, parameter order or bucket list. "
        "Every rank is stopped before the first reduction, and the first difference is named.",
        found="run",
    ),
    Code(
        "SG1004",
        "damaged event file",
        "A file of recorded events is cut short, damaged, or of another version of sgplan.",
        found="run",
    ),
)
