"""`sgplan apply PLAN -- COMMAND`: run the command exactly as planned."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgplan.execution import Request

TAKES_COMMAND = True


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from sgplan.options import add_run_options

    parser = subparsers.add_parser(
        "apply",
        help="run a command under a plan",
        usage="sgplan apply [options] PLAN -- COMMAND...",
        epilog="Exit status: the command's own; 1 when the plan was refused or no step ran "
        "under it; 130 after a second Ctrl-C.",
    )
    parser.add_argument("plan", metavar="PLAN", help="a .sgplan, or a .sgpx that `plan` saved")
    add_run_options(parser)
    parser.add_argument(
        "--tui",
        action="store_true",
        help="show the dashboard; the script has no input, and its output goes to the run's logs. "
        "Closing the dashboard leaves the run alone; SIGTERM to it ends both",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status, or 1 when the plan did not take hold."""
    from sgplan import beside
    from sgplan.execution import requested

    if not args.tui:
        return _apply(requested("apply", args), args.progress)
    beside.require_terminal()
    return beside.apply(requested("apply", args), lambda run: _apply(run, args.progress))


def _apply(request: Request, progress: str) -> int:
    from sgplan import conclude
    from sgplan.execution import execute
    from sgplan.verdict import judge_apply

    done = execute(request)
    outcome = judge_apply(done)
    conclude.conclude(done, outcome)
    conclude.TELL[progress](done, outcome)
    return outcome.status
