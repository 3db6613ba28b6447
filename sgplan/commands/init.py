"""`sgplan init -- COMMAND`: capture a script and write a commented plan to start from."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sgplan.failure import Failure

TAKES_COMMAND = True
EMPTY = "sgplan 1\n"
NAME = "starter.sgplan"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from sgplan.options import add_run_options

    parser = subparsers.add_parser(
        "init",
        help="write a commented starter plan for a command",
        usage="sgplan init [options] -- COMMAND...",
        epilog="The command runs until its first backward pass, as under `plan`.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="a new file to write (default: stdout)",
    )
    add_run_options(parser)


def run(args: argparse.Namespace) -> int:
    """Capture under an empty plan and write what was found as a plan."""
    from sgplan import conclude
    from sgplan.execution import Request, execute
    from sgplan.loading import checked
    from sgplan.output import require_place
    from sgplan.planner.starter import starter_plan
    from sgplan.verdict import judge_plan

    if args.output is not None and Path(args.output).exists():
        raise Failure(f"`{args.output}` exists already and is not overwritten")
    require_place(args.output)
    done = execute(
        Request(
            mode="plan",
            plan=checked(args.output or NAME, EMPTY, args.set),
            command=tuple(args.command),
            run_dir=args.run_dir,
            progress=args.progress,
        )
    )
    outcome = judge_plan(done)
    merged = conclude.conclude(done, outcome)
    if merged is not None and outcome.status == 0:
        _write(args.output, starter_plan(merged.parts[0].facts))
    conclude.TELL[args.progress](done, outcome)
    return outcome.status


def _write(output: str | None, text: str) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Failure(f"`{output}` cannot be written: {error.strerror or error}") from error
