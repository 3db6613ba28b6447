"""The saved plan, `.sgpx`: readable, comparable, refusable.

    "sgpx" · version · SHA-256 of the body · body (msgpack)

The body holds the digests of what the programs were made from, the plan as written, and every
rank's program and facts. This file knows the format and what makes it unusable; whether it fits a
run is `differences`, and `show` reads stale ones all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from sgplan import __version__
from sgplan.grammar.diagnostics import Diagnostic, Refused
from sgplan.grammar.plan import PlanFile
from sgplan.planner.digest import graphs_digest, modules_digest, parameters_digest, short
from sgplan.planner.facts import Facts
from sgplan.planner.program import Program
from sgplan.planner.wire import WireError, decode, encode

MAGIC = b"sgpx"
VERSION = 1
_HEAD = len(MAGIC) + 1
_DIGEST = 32

Digests = dict[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank wrote into the run folder: its program and what it was made from."""

    program: Program
    facts: Facts


@dataclass(frozen=True, slots=True)
class Artefact:
    """A saved plan.

    Attributes:
        plan: the file as written, with overrides and `--set`.
        parts: by rank.
        digests: by rank, as text (`"0"`): of what the part was made from.
        sgplan: the version that wrote it.
    """

    plan: PlanFile
    parts: tuple[Part, ...]
    digests: Mapping[str, Digests]
    sgplan: str = __version__


def make(plan: PlanFile, parts: tuple[Part, ...]) -> Artefact:
    """The artefact of a run whose ranks wrote these parts."""
    ordered = tuple(sorted(parts, key=lambda part: part.program.rank))
    found = {str(part.program.rank): digests_of(part.program, part.facts) for part in ordered}
    return Artefact(plan, ordered, found)


def digests_of(program: Program, facts: Facts) -> Digests:
    """Digests of what a program was made from, by name.

    A root that runs eagerly is compared by modules and parameters: its graphs, if there are any,
    were captured for information.
    """
    compiled = [root for root in facts.roots if root.engine == "inductor"]
    return {
        "plan": program.plan,
        "mesh": " ".join(f"{axis}={size}" for axis, size in program.mesh),
        "torch": facts.torch,
        "modules": modules_digest(facts.roots),
        "parameters": parameters_digest(facts.roots),
        "graphs": graphs_digest(compiled),
        "contract": program.contract,
    }


def differences(
    expect: Mapping[str, Digests],
    rank: int,
    found: Mapping[str, str],
) -> list[Diagnostic]:
    """What differs between an artefact's digests and a run's, one SG1002 for each.

    Args:
        expect: `Artefact.digests`; a rank the artefact does not have is compared with rank 0,
            whose mesh then differs.
        found: the run's own, possibly only those known so far.
    """
    planned = expect.get(str(rank)) or expect.get("0") or {}
    return [
        _difference(name, planned[name], value)
        for name, value in found.items()
        if name in planned and planned[name] != value
    ]


_MEANING = {
    "plan": "the plan's text after overrides",
    "mesh": "axis names and sizes",
    "torch": "the torch version",
    "modules": "module paths and classes",
    "parameters": "names, order, shapes, strides and dtypes of the trainable parameters",
    "graphs": "the structure of the captured graphs",
    "contract": "all that ranks must agree on",
}


def _difference(name: str, planned: str, found: str) -> Diagnostic:
    return Diagnostic(
        "SG1002",
        f"the saved plan does not fit this run: `{name}` differs",
        notes=(
            f"`{name}` is {_MEANING[name]}",
            f"saved with {_shown(planned)}, found {_shown(found)}",
        ),
        help="plan again with `sgplan plan … -o FILE`, or apply the `.sgplan` file itself",
    )


def _shown(value: str) -> str:
    is_digest = len(value) == 64 and set(value) <= set("0123456789abcdef")
    return f"`{short(value) if is_digest else value}`"


def encode_part(program: Program, facts: Facts) -> dict[str, Any]:
    """A rank's part as plain data."""
    return {"program": encode(program), "facts": encode(facts)}


def decode_part(data: Mapping[str, Any]) -> Part:
    """The inverse of `encode_part`.

    Raises:
        WireError: the data is not a part of this version.
    """
    if set(data) != {"program", "facts"}:
        raise WireError(f"a part has the fields {', '.join(sorted(data)) or 'none'}")
    return Part(decode(Program, data["program"]), decode(Facts, data["facts"]))


def read_part(path: Path) -> Part:
    """A rank's part from the run folder.

    Raises:
        Refused: SG1001, it is damaged.
    """
    try:
        return decode_part(_unpack(path.read_bytes()))
    except (ValueError, TypeError) as fault:
        why = str(fault) or f"its data ends early or is no msgpack ({type(fault).__name__})"
        raise Refused([_damaged_part(path, why)]) from fault


def write(path: Path, artefact: Artefact) -> None:
    """Write the file so that a reader sees either the old one or the whole new one."""
    body = {
        "sgplan": artefact.sgplan,
        "digests": {rank: dict(found) for rank, found in artefact.digests.items()},
        "plan": artefact.plan.to_wire(),
        "parts": [encode_part(part.program, part.facts) for part in artefact.parts],
    }
    packed = cast(bytes, cast(Any, msgpack).packb(body))
    replace_file(path, MAGIC + bytes([VERSION]) + hashlib.sha256(packed).digest() + packed)


def replace_file(path: Path, data: bytes) -> None:
    """Write beside, flush, rename."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def read(path: Path) -> Artefact:
    """The artefact in a file, stale or not.

    Raises:
        Refused: SG1001, the file is no artefact, of another version, or damaged.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    if data[: len(MAGIC)] != MAGIC:
        _refuse(path, "it does not begin as a `.sgpx` file does")
    if data[len(MAGIC) : _HEAD] != bytes([VERSION]):
        version = data[len(MAGIC)] if len(data) > len(MAGIC) else "none"
        _refuse(path, f"it has format version {version}, this sgplan reads {VERSION}")
    digest, body = data[_HEAD : _HEAD + _DIGEST], data[_HEAD + _DIGEST :]
    if hashlib.sha256(body).digest() != digest:
        _refuse(path, "its content does not match its own digest: cut short or changed")
    try:
        return _decode(_unpack(body))
    except (ValueError, TypeError, KeyError) as fault:
        _refuse(path, f"its content is not what this sgplan writes: {fault}")


def _unpack(data: bytes) -> dict[str, Any]:
    """A msgpack map; msgpack itself has no types."""
    found = cast(Any, msgpack).unpackb(data)
    if not isinstance(found, dict):
        raise WireError("it holds no map")
    return cast("dict[str, Any]", found)


def _decode(body: dict[str, Any]) -> Artefact:
    return Artefact(
        plan=PlanFile.from_wire(body["plan"]),
        parts=tuple(decode_part(part) for part in body["parts"]),
        digests=body["digests"],
        sgplan=body["sgplan"],
    )


def _damaged_part(path: Path, why: str) -> Diagnostic:
    message = f"`{path.name}` of the run folder cannot be read"
    return Diagnostic("SG1001", message, notes=(why,), help="run the command again")


def _refuse(path: Path, why: str) -> NoReturn:
    message = f"`{path.name}` cannot be used as a saved plan"
    help_ = "plan again with `sgplan plan … -o FILE`"
    raise Refused([Diagnostic("SG1001", message, notes=(why,), help=help_)])
