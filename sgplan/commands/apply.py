"""`sgplan apply PLAN -- COMMAND`: run the command exactly as planned."""

from __future__ import annotations

import argparse

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


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status, or 1 when the plan did not take hold."""
    from sgplan import conclude
    from sgplan.execution import execute, requested
    from sgplan.verdict import judge_apply

    done = execute(requested("apply", args))
    outcome = judge_apply(done)
    conclude.conclude(done, outcome)
    conclude.TELL[args.progress](done, outcome)
    return outcome.status
