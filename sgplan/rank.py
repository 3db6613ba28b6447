"""Which part a Python process plays in a job: decided from its environment and command line alone.

Standard library only, and old-Python-proof, because the injected `sitecustomize` loads this file by
its path in interpreters that may not have sgplan. Knows nothing of what a rank then does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence

RANK_PID = "SGPLAN_RANK_PID"
RANK_OF = "SGPLAN_RANK_OF"
ATTACHING = "SGPLAN_ATTACHING"

LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.launcher",
    "torch.distributed.elastic",
    "accelerate.commands",
    "deepspeed.launcher",
    "composer.cli",
    "lightning_fabric.cli",
    "lightning.fabric.cli",
)
LAUNCHER_PROGRAMS = (
    "torchrun",
    "accelerate",
    "accelerate-launch",
    "deepspeed",
    "composer",
    "fabric",
    "ray",
    "sgplan",
)
LAUNCHER_FILES = (".torch.distributed.run", ".torch.distributed.launch")
HELPER_ARGUMENT = "--multiprocessing-fork"
HELPER_CODE = (
    "from multiprocessing.spawn import",
    "from multiprocessing.forkserver import",
    "from multiprocessing.resource_tracker import",
    "from multiprocessing.semaphore_tracker import",
)
HELPER_MODULE = "torch._inductor.compile_worker"
_LONG_OPTION_WITH_VALUE = "--check-hash-based-pycs"


def decide(environ: Mapping[str, str], argv: Sequence[str], pid: int) -> str:
    """Say what this process is: `rank`, `single`, `launcher` or `helper`.

    Args:
        environ: its environment.
        argv: `sys.orig_argv`, the interpreter's own options included.
        pid: its process id.

    A `rank` was started by a launcher that set RANK; a `single` is the first process without RANK
    that loads torch; a `launcher` starts ranks; everything else (loader workers, compile workers,
    children of a rank, forks of it) is a `helper`, in which nothing is patched.
    """
    if _is_helper_command(argv) or _is_below_another_rank(environ, pid):
        return "helper"
    if _is_launcher(argv):
        return "launcher"
    return "rank" if "RANK" in environ else "single"


def claim(environ: MutableMapping[str, str], pid: int) -> None:
    """Mark this process as the rank, so that every process it starts knows that it is none."""
    environ[RANK_PID] = str(pid)
    environ[RANK_OF] = environ.get("RANK", "")


def _is_below_another_rank(environ: Mapping[str, str], pid: int) -> bool:
    owner = environ.get(RANK_PID)
    attaching = environ.get(ATTACHING)
    if attaching is not None and attaching != str(pid):
        return True
    if owner is None or owner == str(pid):
        return False
    # A launcher we do not know looks like a single process until it starts ranks: these have a
    # RANK where it had none.
    return not (environ.get(RANK_OF) == "" and "RANK" in environ)


def _is_helper_command(argv: Sequence[str]) -> bool:
    program = _program(argv)
    return (
        HELPER_ARGUMENT in argv
        or program.startswith(HELPER_CODE)
        or _as_module(program).endswith((HELPER_MODULE, HELPER_MODULE + ".__main__"))
    )


def _is_launcher(argv: Sequence[str]) -> bool:
    program = _program(argv)
    name = os.path.basename(program)
    if name.endswith(".exe"):
        name = name[: -len(".exe")]
    return (
        name in LAUNCHER_PROGRAMS
        or any(program == m or program.startswith(m + ".") for m in LAUNCHER_MODULES)
        or _as_module(program).endswith(LAUNCHER_FILES)
    )


def _as_module(program: str) -> str:
    """A path read as a dotted name, so that `-m torch.x` and `.../torch/x.py` compare alike."""
    stem = program[: -len(".py")] if program.endswith(".py") else program
    return stem.replace(os.sep, ".")


def _program(argv: Sequence[str]) -> str:
    """What the interpreter runs: the script's path, the `-m` module, or the `-c` text."""
    rest = iter(argv[1:])
    for argument in rest:
        if argument == _LONG_OPTION_WITH_VALUE:
            next(rest, None)
        elif argument.startswith("-") and argument != "-":
            taken = _value_of_short_options(argument, rest)
            if taken is not None:
                return taken
        else:
            return argument
    return ""


def _value_of_short_options(argument: str, rest: Iterator[str]) -> str | None:
    """The value of `-c` or `-m` in a cluster such as `-um`; it may be the next argument."""
    for place, letter in enumerate(argument[1:], start=2):
        if letter == "-":
            return None
        if letter in "cmWX":
            value = argument[place:] or next(rest, "")
            return value if letter in "cm" else None
    return None
