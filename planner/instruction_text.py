"""One line for every instruction, and back: the one spelling of listing, events and screen.

    run fwd0 (x) -> logits, saved0
    reduce.start b0 axis=data   after aten.mm of blocks.4.qkv

An instruction kind is two small functions here and a line in `SPELLINGS`; origins are not its
business.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from sgplan.planner.program import (
    Cast,
    Deliver,
    Free,
    Instruction,
    ReduceStart,
    Run,
    Update,
    Wait,
)
from sgplan.planner.words import GAP, Cursor, word, words

_PLACE = re.compile(r"[\w.:]+( of [\w.:]+)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spelling:
    """How one instruction kind is written and read; the reader starts behind the name."""

    write: Callable[[Any], str]
    read: Callable[[Cursor], Instruction]


def _write_run(line: Run) -> str:
    eager = " eager" if line.eager else ""
    inputs = f" ({words(line.inputs, ', ')})" if line.inputs else ""
    outputs = f" -> {words(line.outputs, ', ')}" if line.outputs else ""
    return f"{word(line.graph)}{eager}{inputs}{outputs}"


def _read_run(cursor: Cursor) -> Run:
    graph, eager, inputs = cursor.word(), cursor.maybe("eager"), ()
    if cursor.maybe("("):
        inputs = cursor.words(",", until=")")
        cursor.expect(")")
    outputs = cursor.words(",") if cursor.maybe("->") else ()
    return Run(graph, inputs, outputs, eager)


def _write_cast(line: Cast) -> str:
    return f"{word(line.bucket)} {word(line.source)} -> {word(line.target)}"


def _read_cast(cursor: Cursor) -> Cast:
    bucket, source = cursor.word(), cursor.word()
    cursor.expect("->")
    return Cast(bucket, source, cursor.word())


def _write_reduce_start(line: ReduceStart) -> str:
    return f"{word(line.bucket)} axis={word(line.axis)}{GAP}{_when(line)}"


def _when(line: ReduceStart) -> str:
    """Where it starts: behind an op of its graph, by hook, or behind the whole backward."""
    end = ["at end"] if line.when == "end" else []
    plain = _PLACE.match(line.after)
    after = [f"after {line.after if plain else word(line.after)}"] if line.after else []
    return " ".join([*after, *end]) or "hook"


def _read_reduce_start(cursor: Cursor) -> ReduceStart:
    bucket = cursor.word()
    cursor.expect("axis", "=")
    axis, after = cursor.word(), ""
    if cursor.maybe("hook"):
        return ReduceStart(bucket, axis)
    if cursor.maybe("after"):
        after = cursor.word()
        after += f" of {cursor.word()}" if cursor.maybe("of") else ""
    if cursor.maybe("at"):
        cursor.expect("end")
        return ReduceStart(bucket, axis, after, "end")
    if not after:
        raise cursor.error("`hook`, `after` or `at end`")
    return ReduceStart(bucket, axis, after)


def _write_deliver(line: Deliver) -> str:
    return f"{word(line.root)} grads ({line.gradients})"


def _read_deliver(cursor: Cursor) -> Deliver:
    root = cursor.word()
    cursor.expect("grads", "(")
    count = cursor.number()
    cursor.expect(")")
    return Deliver(root, count)


def _write_update(line: Update) -> str:
    return f"{word(line.optimizer)} optimizer={line.kind}"


def _read_update(cursor: Cursor) -> Update:
    name = cursor.word()
    cursor.expect("optimizer", "=")
    kind: Any = cursor.one_of(("as_written", "fused", "compiled"))
    return Update(name, kind)


SPELLINGS: dict[type, Spelling] = {
    Run: Spelling(_write_run, _read_run),
    Cast: Spelling(_write_cast, _read_cast),
    ReduceStart: Spelling(_write_reduce_start, _read_reduce_start),
    Wait: Spelling(lambda line: words(line.buckets), lambda cursor: Wait(cursor.words())),
    Deliver: Spelling(_write_deliver, _read_deliver),
    Free: Spelling(lambda line: words(line.values), lambda cursor: Free(cursor.words())),
    Update: Spelling(_write_update, _read_update),
}

_BY_NAME = {cast(Any, kind).name: spelling for kind, spelling in SPELLINGS.items()}


def format_instruction(line: Instruction) -> str:
    """The instruction as one line, without its origin."""
    return f"{line.name} {SPELLINGS[type(line)].write(line)}".rstrip()


def read_instruction(cursor: Cursor) -> Instruction:
    """Reads one instruction up to its origin or the end of the line.

    Raises:
        TextError: the line is not an instruction.
    """
    return _BY_NAME[cursor.one_of(tuple(_BY_NAME))].read(cursor)


def parse_instruction(text: str) -> Instruction:
    """The inverse of `format_instruction`.

    Raises:
        TextError: the text is not one instruction.
    """
    cursor = Cursor(text)
    line = read_instruction(cursor)
    cursor.end()
    return line
