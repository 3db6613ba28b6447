"""Options that several commands share, spelled once."""

from __future__ import annotations

import argparse


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """`--set`, `--run-dir` and `--quiet`, for the commands that start the user's command."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="ADDRESS=VALUE",
        help="set one attribute, as in `sync.bucket=4MiB`; may be repeated",
    )
    parser.add_argument(
        "--run-dir", metavar="DIR", help="folder of the run (default: .sgplan/runs/TIME-NAME)"
    )
    parser.add_argument(
        "--quiet",
        dest="progress",
        action="store_const",
        const="silent",
        default="shown",
        help="no progress and no summary; failures are still said",
    )


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """`--json`, `--ops` and `--kernels`, for the commands that show programs."""
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    views = parser.add_mutually_exclusive_group()
    views.add_argument(
        "--ops",
        dest="view",
        action="store_const",
        const="ops",
        help="the captured ops, modules and families instead",
    )
    views.add_argument(
        "--kernels",
        dest="view",
        action="store_const",
        const="kernels",
        help="what became of the fusion rules, and every kernel, instead",
    )
