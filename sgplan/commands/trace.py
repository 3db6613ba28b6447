"""`sgplan trace RUN -o FILE`: a run for Perfetto."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "trace",
        help="a run as a trace for Perfetto (ui.perfetto.dev)",
        epilog="All ranks on one clock; of one step in a second or two the instructions are in it.",
    )
    parser.add_argument("which", metavar="RUN", help="a run's folder or name")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="JSON, `-` is stdout")


def run(args: argparse.Namespace) -> int:
    """Write the trace; returns 0, with what could not be read on stderr."""
    import json
    import sys
    from pathlib import Path

    from sgplan import runfolder
    from sgplan.output import require_place
    from sgplan.reader import Reader
    from sgplan.trace import trace_of

    require_place(None if args.output == "-" else args.output)
    reader = Reader(runfolder.find(args.which).path)
    text = json.dumps(trace_of(reader.records()))
    if args.output == "-":
        print(text)
    else:
        Path(args.output).write_text(text, encoding="utf-8")
    for verdict in reader.verdicts():
        print(f"sgplan: {verdict.message}", file=sys.stderr)
    return 0
