"""The command line: which commands there are, and what a failure looks like from outside.

Only the module of the command that was asked for is imported, so that `sgplan check` starts without
torch and rich. Knows no command's options.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

from sgplan import __version__
from sgplan.failure import Failure
from sgplan.grammar.diagnostics import Refused
from sgplan.grammar.nearest import joined, nearest

COMMANDS = (
    "check",
    "plan",
    "apply",
    "verify",
    "show",
    "top",
    "trace",
    "init",
    "fmt",
    "explain",
    "doctor",
)
LATER = {
    "simulate": "the simulator",
    "tune": "the search for a better plan",
    "checkpoints": "the list of checkpoints",
    "diff": "the comparison of two plans or runs",
}
SEPARATOR = "--"
_SubParsers: TypeAlias = "argparse._SubParsersAction[Any]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _write_any_text()
    try:
        return _flushed(arguments)
    except Failure as failure:
        print(f"sgplan: error: {failure}", file=sys.stderr)
        return 1
    except Refused as refused:
        from sgplan.refusal import print_refusal

        print_refusal(refused)
        return 1
    except BrokenPipeError:  # the reader of our output has gone (`| head`)
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"sgplan: error: {error}", file=sys.stderr)
        _drop_output()
        return 1
    except Exception:
        import traceback

        traceback.print_exc()
        print("sgplan: internal error: a fault of sgplan, not of the plan", file=sys.stderr)
        return 1


def _write_any_text() -> None:
    """Let a terminal that lacks a character get an escape, not us an exception."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or out.encoding != "utf-8"):
        out.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What cannot be written now must not be tried again when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _flushed(arguments: list[str]) -> int:
    """Run one command; output that cannot be written fails here, not when Python ends."""
    try:
        return _run(arguments)
    finally:
        if sys.stdout is not None:  # None when it was closed before we started
            sys.stdout.flush()


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:  # without loading every command for their help
        print(f"sgplan {__version__}")
        return 0
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name in LATER:
        raise Failure(f"`sgplan {name}` ({LATER[name]}) is not built yet")
    if name is not None and name not in COMMANDS:
        raise Failure(f"there is no command `{name}`; {_instead_of(name)}")
    module = None if name is None else _module(name)
    arguments, command = _split(arguments, module)
    parser = _parser(module)
    args, left = parser.parse_known_args(arguments)
    if left and getattr(module, "TAKES_COMMAND", False) and not command:
        raise Failure(f"`{left[0]}` is not read: write `--` before the command")
    if left:
        parser.error(f"nothing reads {joined(left, 'and')}")
    args.command = command
    return args.run(args)


def _instead_of(name: str) -> str:
    close = nearest(name, COMMANDS)
    return f"write `{close}`" if close else f"there are {joined(COMMANDS, 'and')}"


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"sgplan.commands.{name}")


def _split(arguments: list[str], module: ModuleType | None) -> tuple[list[str], list[str]]:
    """Our arguments and the user's command behind `--`, for the commands that start one."""
    if SEPARATOR in arguments and getattr(module, "TAKES_COMMAND", False):
        at = arguments.index(SEPARATOR)
        return arguments[:at], arguments[at + 1 :]
    return arguments, []


class _Parser(argparse.ArgumentParser):
    """Options are written in full; wrong usage is status 1, for 2 is an answer of `plan`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


def _parser(module: ModuleType | None) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="sgplan",
        description="Plan, show and run distributed PyTorch training on an unmodified script.",
        epilog=f"not built yet: {', '.join(LATER)}",
    )
    parser.add_argument("--version", action="version", version=f"sgplan {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, dest="name")
    for wanted in map(_module, COMMANDS) if module is None else (module,):
        _add(wanted, subparsers)
    return parser


def _add(module: ModuleType, subparsers: _SubParsers) -> None:
    module.add_parser(subparsers)
    subparsers.choices[module.__name__.rpartition(".")[2]].set_defaults(run=module.run)
