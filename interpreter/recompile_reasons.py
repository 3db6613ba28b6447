"""From Dynamo's words for a failed guard to a path of the language, the old value and the place.

Knows the form of Dynamo's reasons for calls of `torch_api.wrap_inline` and for plain `forward`s;
what it does not know is handed through as it is.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sgplan.grammar.plan import GuardPath
from sgplan.interpreter.arguments import given_key, local_name
from sgplan.interpreter.places import spelled_place
from sgplan.planner.capture.provenance import attribute_path


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a frame was compiled again.

    Attributes:
        path: what failed; None for what no path names (`watched` says it in words).
        old: what the compiled code held for, None when the reason does not give it.
        new: what was met, where the reason gives it.
        where: the line of the script that uses the value, empty when not known.
        text: Dynamo's own words.
    """

    path: GuardPath | None
    watched: str
    old: Any
    new: Any
    where: str
    text: str


_ENTRY = re.compile(r"^\d+/\d+: ")
_TENSOR = re.compile(
    r"tensor '(?P<source>.+)' (?P<what>size|dtype|device|rank|stride|requires_grad) mismatch"
    r"(?: at index (?P<dim>\d+))?\.? expected (?P<old>.+), actual (?P<new>.+)"
)
_SIZE = re.compile(r"(?P<source>\S+?)\.size\(\)\[(?P<dim>\d+)\]")
_EQUAL = re.compile(r"^(?P<source>\S+) == (?P<old>'[^']*'|\S+)")
_STATE = re.compile(r"GLOBAL_STATE changed: (?P<what>\w+)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_BESIDE = re.compile(r"# .*  # (?P<file>\S+):(?P<line>\d+) in ")
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Bool": "bool",
}


def causes(reason: str, *, of_call: bool = True) -> Iterator[Cause]:
    """What failed, one for each compiled entry, the newest first.

    Args:
        of_call: the frame is a captured call or the `forward` behind it. Other frames have locals
            and a `self` of their own, which no path of the language means.
    """
    parts = re.split(r"(?m)^(?=\d+/\d+: )", reason)
    for part in filter(None, map(str.strip, parts)):
        yield _cause(_ENTRY.sub("", part), of_call)


def _cause(text: str, of_call: bool) -> Cause:
    head = text.splitlines()[0].strip()
    where = _place(text)
    guard = re.split(r"\s+# ", head)[0].strip()
    if found := _TENSOR.search(head):
        path = _tensor_path(found) if of_call else None
        old, new = _value(found["old"], found["what"]), _value(found["new"], found["what"])
        watched = str(path) if path else f"{found['what']} of `{found['source']}`"
        return Cause(path, watched, old, new, where, guard)
    if found := _SIZE.search(guard):
        key = _input(found["source"]) if of_call else None
        path = None if key is None else GuardPath(key, "shape", int(found["dim"]))
        return Cause(path, str(path or guard), None, None, where, guard)
    if found := _EQUAL.match(guard):
        path = _path(found["source"]) if of_call else None
        return Cause(path, str(path or guard), _literal(found["old"]), None, where, guard)
    if found := _STATE.search(head):
        return Cause(None, found["what"], None, None, where, guard)
    return Cause(None, guard, None, None, where, guard)


def _tensor_path(found: re.Match[str]) -> GuardPath | None:
    key = _input(found["source"])
    if key is None:
        return None
    if found["what"] == "size":
        return GuardPath(key, "shape", int(found["dim"]))
    if found["what"] in ("dtype", "device"):
        return GuardPath(key, "dtype" if found["what"] == "dtype" else "device")
    return None


def _value(text: str, what: str) -> Any:
    text = text.strip().rstrip(".")
    return _DTYPES.get(text, text) if what == "dtype" else _literal(text)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _input(source: str) -> int | str | None:
    """Place or name of an argument, None for anything else."""
    key = given_key(source)
    return local_name(source) if key is None else key


def _path(source: str) -> GuardPath | None:
    key = _input(source)
    if key is not None:
        return GuardPath(key, "value")
    found = attribute_path(source)
    return None if found is None else GuardPath(found[0], "attribute", attribute=found[1])


def _place(text: str) -> str:
    """`train.py:12`: the innermost line of the script, torch's own lines left out."""
    frames = [f for f in _FRAME.findall(text) if f"{os.sep}torch{os.sep}" not in f[0]]
    if frames:
        return spelled_place(*frames[-1])
    beside = _BESIDE.search(text.splitlines()[0])
    # Dynamo shortens this one to the end of the path.
    if beside is None or beside["file"].startswith(("nn/", "torch/")):
        return ""
    return spelled_place(beside["file"], beside["line"])
