"""`sgplan verify PLAN -- COMMAND`: prove the planned run equal to the plain one."""

from __future__ import annotations

import argparse

TAKES_COMMAND = True


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from sgplan.options import add_run_options

    parser = subparsers.add_parser(
        "verify",
        help="prove that a command computes the same under a plan",
        usage="sgplan verify [options] PLAN -- COMMAND...",
        epilog="The command runs for a few steps (`verify.steps`), once as it is written and once "
        "under the plan, from the same seed and state; when they differ, some more times to find "
        "who caused it. Its own output goes to stderr, and `torch.save` writes nothing. Exit "
        "status: 0 equal, 1 different or failed.",
    )
    parser.add_argument("plan", metavar="PLAN", help="a .sgplan, or a .sgpx that `plan` saved")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    add_run_options(parser)


def run(args: argparse.Namespace) -> int:
    """Verify and print; returns 0 when the runs are equal, else 1."""
    import json

    from sgplan.loading import load
    from sgplan.proof.verify import verify_plan

    loaded = load(args.plan, args.set)
    found = verify_plan(loaded.plan, tuple(args.command), args.run_dir, {}, args.progress)
    print(json.dumps(found.to_json(), indent=2) if args.json else found.table)
    return 0 if found.ok else 1
