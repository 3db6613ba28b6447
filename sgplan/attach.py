"""Inside a rank: wire planner and interpreter together and patch torch, once torch is loaded.

Called by the injected `sitecustomize`. Everything a rank needs of other folders is put together
here; nothing else imports both the planner's passes and the interpreter.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgpack

from sgplan import process
from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.plan import PlanFile
from sgplan.interpreter import events, record
from sgplan.rank import claim, decide


def torch_loaded(torch: Any) -> None:
    """Attach to this process when it is a rank.

    Args:
        torch: the module, loaded a moment ago.
    """
    role = decide(os.environ, getattr(sys, "orig_argv", sys.argv), os.getpid())
    if role not in ("rank", "single"):
        return
    claim(os.environ, os.getpid())
    process.die_with_parent(signal.SIGTERM)
    _attach(torch, role)


def _attach(torch: Any, role: str) -> None:
    folder = Path(os.environ["SGPLAN_RUN"])
    mode = os.environ["SGPLAN_MODE"]
    number, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    def recorder() -> record.Recorder:
        path = folder / f"events-{number}.msgpack"
        opened = record.Recorder(path, record.header(number, world, mode))
        opened.emit(
            events.RankAttached, number, world, os.getpid(), sys.executable, torch.__version__, mode
        )
        return opened

    wire = msgpack.unpackb((folder / "plan.msgpack").read_bytes(), strict_map_key=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        plan = PlanFile.from_wire(wire["plan"]).resolve(world, device)
        task = _task(folder, mode)
        if task is not None:
            from sgplan.planner.leave_out import without

            plan = without(plan, task.without)
    except Refused as refused:
        _refuse(recorder(), refused)
    else:
        _install(plan, mode, folder, number, recorder, wire["expect"], role, task)


def _task(folder: Path, mode: str) -> Any:
    """What `sgplan verify` wants of this rank; None in any other mode."""
    if mode != "verify":
        return None
    from sgplan.interpreter.verifying import Task

    return Task(**msgpack.unpackb((folder / "verify.msgpack").read_bytes()))


def _refuse(opened: record.Recorder, refused: Refused) -> None:
    for diagnostic in refused.diagnostics:
        opened.emit(events.DiagnosticRaised, diagnostic.to_wire())
    opened.emit(events.ScriptEnded, "refused", str(refused), 0, 0)
    opened.close()
    os._exit(1)


def _install(
    plan: Any,
    mode: Any,
    folder: Path,
    number: int,
    recorder: Any,
    expect: Any,
    role: str,
    task: Any,
) -> None:
    from sgplan.interpreter import backward, compiled_step, ops, optimizers, unsupported
    from sgplan.interpreter.compiling import Compiling
    from sgplan.interpreter.graph_backend import GraphBackend
    from sgplan.interpreter.handlers import collectives, compute, memory, state
    from sgplan.interpreter.outermost import Outermost
    from sgplan.interpreter.planmode import PlanMode
    from sgplan.interpreter.rank import Rank
    from sgplan.interpreter.takeover import Takeover
    from sgplan.interpreter.verifying import Verifying
    from sgplan.planner.capture.record import record_graph

    del ops, collectives, compute, memory, state  # imported for what they register
    rank = Rank(plan, mode, folder, number, recorder, _planner(), expect)
    graphs = GraphBackend(rank, record_graph)
    compiling = Compiling(rank, graphs)
    compiling.install()
    Takeover(rank, compiling.entering).install()
    planning = PlanMode(rank) if mode == "plan" else None
    if planning is not None:
        planning.install()
        rank.on_idle = planning.on_idle
    backward.install(rank, None if planning is None else planning.finish)
    Outermost(rank, compiling.entering, compiling.compiles).install()
    if task is not None:
        rank.verifying = Verifying(rank, task)
        rank.stage_offset = task.offset
        rank.verifying.install()
    rank.loss_scales.install()
    rank.masters.install()  # within the loss scale: what is skipped moves no master
    if rank.verifying is not None:
        rank.verifying.watch_updates()
    rank.watch_updates()
    rank.steps.install()
    rank.misses.install()
    found = rank.optimizers
    fusing = optimizers.Fusing(found.wants_fused, found.fused_built, found.cannot_follow)
    optimizers.install(fusing, rank.steps)
    if any(update.optimizer == "compiled" for update in plan.updates):
        compiling_steps = compiled_step.CompilingSteps(
            found.wants_compiled,
            found.step_compiles,
            found.step_compiled,
            found.cannot_follow,
            found.barred,
        )
        found.objection = compiling_steps.objection
        compiled_step.install(compiling_steps, rank.steps, rank.inner_steps)
    rank.inner_steps.install()
    unsupported.watch_spawn(lambda text: rank.once(events.NoteAdded, "unsupported", text))
    rank.watch_exit()
    if role == "rank":
        rank.open()


def _planner() -> Any:
    from sgplan.interpreter.lowering import Planner
    from sgplan.planner import (
        artefact,
        digest,
        engine_settings,
        overlap,
        pipeline,
        precision,
        recompute,
        rules,
        select,
    )

    return Planner(
        lower=pipeline.lower,
        contract=digest.contract_text,
        difference=digest.first_difference,
        digest=digest.sha,
        overlap=overlap.overlap_violations,
        digests=artefact.digests_of,
        stale=artefact.differences,
        selectors=select.problems,
        settings=engine_settings.inductor_settings,
        device=engine_settings.device_problems,
        rules=rules.rules_of,
        recomputes=recompute.requests_of,
        missed=lambda plan, facts: [*rules.missed(plan, facts), *recompute.broken(plan, facts)],
        miscounted=lambda plan, facts: [
            *rules.miscounted(plan, facts),
            *recompute.idle(plan, facts),
            *precision.idle(plan, facts),
        ],
        part=lambda program, facts: msgpack.Packer().pack(artefact.encode_part(program, facts)),
    )
