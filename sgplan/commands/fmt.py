"""`sgplan fmt`: plans in the canonical layout. Starts without torch."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path

from sgplan.commands.check import STDIN, read
from sgplan.failure import Failure
from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.format import format_document
from sgplan.grammar.parse import parse
from sgplan.grammar.source import decode, legible
from sgplan.refusal import print_diagnostics


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("fmt", help="rewrite plans in the canonical layout")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="plans, or - for standard input to output"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; name what would change and end with status 1",
    )
    parser.add_argument("--diff", action="store_true", help="the same, with the changes")


def run(args: argparse.Namespace) -> int:
    """Format every file; status 1 when one cannot be, or would change under --check."""
    mode = "diff" if args.diff else "check" if args.check else "write"
    return max([_format(path, mode) for path in args.files])


def _format(path: str, mode: str) -> int:
    try:
        return _formatted(path, mode)
    except Failure as failure:  # the other files are still formatted
        print(f"sgplan: error: {failure}", file=sys.stderr)
        return 1


def _formatted(path: str, mode: str) -> int:
    name = "<stdin>" if path == STDIN else path
    data = read(path)
    try:
        text = decode(data, name)
        new = format_document(parse(text, name))
    except Refused as refused:
        print_diagnostics(refused.diagnostics, {name: legible(data)})
        return 1
    changed = new.encode() != data
    return _MODES[mode](path, name, text, new) if changed or path == STDIN else 0


def _write(path: str, name: str, old: str, new: str) -> int:
    if path == STDIN:
        sys.stdout.flush()
        sys.stdout.buffer.write(new.encode())
        return 0
    try:
        Path(path).write_bytes(new.encode())
    except OSError as error:
        raise Failure(f"`{path}` cannot be written: {error.strerror or error}") from error
    print(f"formatted {name}")
    return 0


def _check(path: str, name: str, old: str, new: str) -> int:
    if old == new:
        return 0
    print(f"would format {name}")
    return 1


def _diff(path: str, name: str, old: str, new: str) -> int:
    sys.stdout.writelines(_changes(name, old, new))
    return int(old != new)


def _changes(name: str, old: str, new: str) -> Iterable[str]:
    lines = (old.splitlines(keepends=True), new.splitlines(keepends=True))
    for line in difflib.unified_diff(*lines, name, f"{name} (formatted)"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


_MODES = {"write": _write, "check": _check, "diff": _diff}
