"""One run from plan to ended command: folder, child, event files.

Shared by `apply`, `plan` and `init`. Knows the order of things; what a run came to is judged in
`verdict.py` and told in `report.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from sgplan import launch, runfolder, runs
from sgplan.grammar.diagnostics import Diagnostic
from sgplan.grammar.plan import PlanFile
from sgplan.loading import load
from sgplan.observer import Observer
from sgplan.report import Run
from sgplan.runfolder import RunFolder
from sgplan.slo import SloWatch
from sgplan.summary import Summary

# A listing or a comparison is our standard output: what the script prints goes beside it.
_STDOUT = {"apply": 1, "plan": 2, "verify": 2}


@dataclass(frozen=True, slots=True)
class Request:
    """What a command wants to be run.

    Attributes:
        mode: what the ranks do with the plan.
        plan: checked.
        command: the user's own, as typed behind `--`.
        expect: digests of an artefact that the run must reproduce, or None.
        run_dir: the folder the user named, or None.
        progress: `shown`, `silent` for `--quiet`, or `unseen` where another process shows it; the
            levels of a run that paints nothing are judged as it goes all the same.
        task: what `verify` wants of the ranks (`interpreter.verifying.Task` as a map), or None.
        variables: of the child's environment, beside those it inherits.
    """

    mode: Literal["apply", "plan", "verify"]
    plan: PlanFile
    command: tuple[str, ...]
    expect: dict[str, Any] | None = None
    run_dir: str | None = None
    progress: Literal["shown", "silent", "unseen"] = "shown"
    task: dict[str, Any] | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


def requested(mode: Literal["apply", "plan"], args: argparse.Namespace) -> Request:
    """The request of a command line with PLAN, `add_run_options` and a command behind `--`.

    Raises: as `loading.load`.
    """
    loaded = load(args.plan, args.set)
    return Request(
        mode=mode,
        plan=loaded.plan,
        command=tuple(args.command),
        expect=loaded.expect,
        run_dir=args.run_dir,
        progress=args.progress,
    )


@dataclass(frozen=True, slots=True)
class Executed:
    """A run whose last process has ended; `child` is None when a second Ctrl-C killed it.

    Attributes:
        enforced: whether a breach of a service level fails the run.
        gone: whether the run folder was deleted while the command ran.
    """

    run: Run
    folder: RunFolder
    plan: PlanFile
    child: int | None
    summary: Summary
    damage: tuple[Diagnostic, ...]
    enforced: bool = False
    gone: bool = False


def execute(request: Request) -> Executed:
    """Run the command under the plan and read all that its ranks left.

    Raises:
        Failure: the command cannot be found, or the run folder cannot be used.
    """
    launch.require_program(request.command)
    folder = runfolder.create(request.run_dir, PurePath(request.plan.source).stem or "plan")
    folder.write_plan(request.plan, request.expect)
    identity = folder.identity()
    # Where a recorded or a planning run is slow, nobody is to blame.
    watch = SloWatch(folder.path, request.plan) if request.mode == "apply" else None
    observer = Observer(folder.path, watch)
    started = time.time()
    if request.mode != "verify":  # its jobs are parts of a verification
        runs.remember(folder, started)
    if request.task is not None:
        folder.write_task(request.task)
    inherited = {**os.environ, **request.variables}
    environ = launch.environment(folder.path, request.mode, inherited)
    job = launch.Job(request.command, environ, folder.log, stdout=_STDOUT[request.mode])
    status = job.run(_screen(request, observer))
    observer.finish()
    run = Run(
        mode=request.mode,
        command=request.command,
        plan=request.plan.source,
        folder=str(folder.path),
        started=started,
        seconds=time.time() - started,
    )
    child = None if job.killed else status
    damage = tuple(observer.verdicts())
    enforced = watch is not None and watch.enforced
    gone = folder.identity() != identity
    return Executed(run, folder, request.plan, child, observer.summary, damage, enforced, gone)


def _screen(request: Request, observer: Observer) -> launch.Screen:
    """Rich is loaded only when there is something to paint with it."""
    from sgplan import progress

    def poll() -> Summary:
        observer.poll()
        return observer.summary

    if request.progress != "shown":
        return progress.Unseen(poll)
    if sys.stderr.isatty():
        return progress.TerminalLine(poll, sys.stderr)
    return progress.SparseLines(poll)
