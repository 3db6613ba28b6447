"""`sgplan plan PLAN -- COMMAND`: capture the script, list every rank's program, update nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgplan.planner.artefact import Artefact
    from sgplan.showing import Shown

TAKES_COMMAND = True
WOULD_CHANGE = 2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from sgplan.options import add_run_options, add_view_options

    parser = subparsers.add_parser(
        "plan",
        help="list what a plan would do to a command, without training",
        usage="sgplan plan [options] PLAN -- COMMAND...",
        epilog="The command runs until its first backward pass; no parameter is updated. Its own "
        "output goes to stderr. Exit status: 0, 1 when refused or nothing was captured, 2 with "
        "--detailed-exitcode when the plan would do anything.",
    )
    parser.add_argument("plan", metavar="PLAN", help="a .sgplan, or a .sgpx to compare with")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the programs as a .sgpx")
    parser.add_argument(
        "--detailed-exitcode",
        action="store_true",
        help="status 2 when the plan would do anything the script would not do by itself",
    )
    add_view_options(parser)
    add_run_options(parser)


def run(args: argparse.Namespace) -> int:
    """Capture and list; returns the exit status."""
    from sgplan import conclude
    from sgplan.execution import execute, requested
    from sgplan.output import require_place
    from sgplan.planner.safety import require_safe
    from sgplan.showing import print_view, select, view_of
    from sgplan.verdict import judge_plan

    require_place(args.output)
    done = execute(requested("plan", args))
    outcome = judge_plan(done)
    merged = conclude.conclude(done, outcome)
    if merged is None or outcome.status != 0:
        conclude.TELL[args.progress](done, outcome)
        return outcome.status
    require_safe([part.program for part in merged.parts])
    shown = select(merged, None)
    print_view(shown, view_of(args))
    conclude.TELL[args.progress](done, outcome)
    return _save(args.output, merged) or _status(args, shown)


def _save(output: str | None, merged: Artefact) -> int:
    from sgplan.failure import Failure
    from sgplan.planner import artefact

    if output is not None:
        try:
            artefact.write(Path(output), merged)
        except OSError as error:
            raise Failure(f"`{output}` cannot be written: {error.strerror or error}") from error
    return 0


def _status(args: argparse.Namespace, shown: Shown) -> int:
    from sgplan.changes import changes

    if not args.detailed_exitcode:
        return 0
    return WOULD_CHANGE if any(changes(shown.plan, part) for part in shown.parts) else 0
