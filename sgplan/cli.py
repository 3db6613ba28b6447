"""The command line: which commands there are, and what a failure looks like from outside.

Only the module of the command that was asked for is imported, so that `sgplan check` starts without
torch and rich. Knows no command's options.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TypeAlias

from sgplan import __version__
from sgplan.failure import Failure
from sgplan.grammar.diagnostics import Refused

COMMANDS = ("check", "plan", "apply", "show", "init", "fmt", "explain", "doctor")
LATER = {
    "verify": "the numeric proof against the plain script",
    "top": "the dashboard",
    "simulate": "the simulator",
    "trace": "the timeline",
    "tune": "the search for a better plan",
    "checkpoints": "the list of checkpoints",
    "diff": "the comparison of two plans or runs",
}
SEPARATOR = "--"
_SubParsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except Failure as failure:
        print(f"sgplan: error: {failure}", file=sys.stderr)
        return 1
    except Refused as refused:
        from sgplan.refusal import print_refusal

        print_refusal(refused)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:  # without loading every command for their help
        print(f"sgplan {__version__}")
        return 0
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name in LATER:
        raise Failure(f"`sgplan {name}` ({LATER[name]}) is not built yet")
    module = _module(name) if name in COMMANDS else None
    arguments, command = _split(arguments, module)
    args = _parser(module).parse_args(arguments)
    args.command = command
    return args.run(args)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"sgplan.commands.{name}")


def _split(arguments: list[str], module: ModuleType | None) -> tuple[list[str], list[str]]:
    """Our arguments and the user's command behind `--`, for the commands that start one."""
    if SEPARATOR in arguments and getattr(module, "TAKES_COMMAND", False):
        at = arguments.index(SEPARATOR)
        return arguments[:at], arguments[at + 1 :]
    return arguments, []


def _parser(module: ModuleType | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sgplan",
        description="Plan, show and run distributed PyTorch training on an unmodified script.",
        epilog=f"not built yet: {', '.join(LATER)}",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sgplan {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, dest="name")
    for name in COMMANDS:
        if module is None:
            _add(_module(name), subparsers)
        elif module.__name__.endswith(f".{name}"):
            _add(module, subparsers)
        else:
            subparsers.add_parser(name)
    return parser


def _add(module: ModuleType, subparsers: _SubParsers) -> None:
    module.add_parser(subparsers)
    subparsers.choices[module.__name__.rpartition(".")[2]].set_defaults(run=module.run)
