"""`sgplan check`: what is wrong with a plan, from its text alone. Starts without torch."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from sgplan.failure import Failure
from sgplan.grammar.check import check_text, sources_of
from sgplan.grammar.diagnostics import Diagnostic, Label, Refused
from sgplan.grammar.planfile import PlanFile
from sgplan.grammar.source import decode, legible
from sgplan.loading import MAGIC, read_bytes
from sgplan.refusal import print_diagnostics

SCHEMA = 1
STDIN = "-"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("check", help="what is wrong with a plan, without running it")
    parser.add_argument("file", metavar="FILE", help="the plan, or - for standard input")
    parser.add_argument("--json", action="store_true", help="the diagnostics as JSON on stdout")
    parser.add_argument(
        "--world", type=_world, metavar="N", help="also check what depends on the number of ranks"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="ADDRESS=VALUE",
        help="set one attribute, as in `sync.bucket=4MiB`; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Print every diagnostic; status 1 when there is an error."""
    name = "<stdin>" if args.file == STDIN else args.file
    text, plan, found = _checked(args.file, name, args.set, args.world)
    if args.json:
        print(json.dumps(_as_json(name, plan, found), indent=2))
    else:
        print_diagnostics(found, sources_of(text, name, args.set))
        print(_ok(name, plan) if plan else _failed(name, found), file=_stream(plan))
    return int(plan is None)


def read(path: str) -> bytes:
    """The bytes of a file or of standard input.

    Raises:
        Failure: it cannot be read, or is a saved plan.
    """
    if path == STDIN and sys.stdin is None:
        raise Failure("standard input is closed")
    data = sys.stdin.buffer.read() if path == STDIN else read_bytes(path)
    if data.startswith(MAGIC):
        raise Failure(f"`{path}` is a saved plan, not text: `sgplan show` reads it")
    return data


def _checked(
    path: str, name: str, sets: list[str], world: int | None
) -> tuple[str, PlanFile | None, list[Diagnostic]]:
    data = read(path)
    try:
        text = decode(data, name)
    except Refused as refused:
        return legible(data), None, list(refused.diagnostics)
    return text, *check_text(text, name, sets, world)


def _world(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)


def _stream(plan: PlanFile | None) -> Any:
    return sys.stderr if plan is None else sys.stdout


def _ok(name: str, plan: PlanFile) -> str:
    blocks = _counted(len(plan.blocks), "block")
    overrides = f", {_counted(len(plan.overrides), 'override')}" if plan.overrides else ""
    return f"{name}: ok ({blocks}{overrides})"


def _failed(name: str, found: list[Diagnostic]) -> str:
    errors = sum(diagnostic.severity == "error" for diagnostic in found)
    return f"\n{name}: {_counted(errors, 'error')}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _as_json(name: str, plan: PlanFile | None, found: list[Diagnostic]) -> dict[str, Any]:
    return {
        "sgplan_check": SCHEMA,
        "source": name,
        "ok": plan is not None,
        "diagnostics": [_diagnostic(diagnostic) for diagnostic in found],
    }


def _diagnostic(diagnostic: Diagnostic) -> dict[str, Any]:
    """The wire form, with places as objects instead of rows."""
    primary = diagnostic.primary
    return diagnostic.to_wire() | {
        "primary": None if primary is None else _place(primary),
        "secondary": [_place(label) for label in diagnostic.secondary],
    }


def _place(label: Label) -> dict[str, Any]:
    span = label.span
    return {
        "source": span.source,
        "line": span.line,
        "column": span.column,
        "start": span.start,
        "end": span.end,
        "label": label.text,
    }
