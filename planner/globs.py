"""Module globs: `*` one component, `**` any depth, `{0..11}` and `{a,b}`; text only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

_PIECE = re.compile(r"\*\*\.|\.\*\*|\*\*|\*|\{[^{}]*\}|\.|[^*{.]+")
_RANGE = re.compile(r"(\d+)\.\.(\d+)\Z")

# `**` swallows its dot, so that `**.norm` names the root's own `norm` as well.
_FIXED = {
    "**.": r"(?:[^.]+\.)*",
    ".**": r"(?:\.[^.]+)*",
    "**": r".*",
    "*": r"[^.]*",
}


def matching(glob: str, paths: Iterable[str]) -> tuple[str, ...]:
    """The module paths the glob names itself, submodules not listed again."""
    pattern = _pattern(glob)
    return tuple(path for path in paths if pattern.fullmatch(path))


def covers(glob: str, path: str) -> bool:
    """Whether the glob names the module or one that contains it."""
    parts = path.split(".")
    pattern = _pattern(glob)
    return any(pattern.fullmatch(".".join(parts[:end])) for end in range(1, len(parts) + 1))


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile("".join(map(_piece, _PIECE.findall(glob))))


def _piece(piece: str) -> str:
    if piece in _FIXED:
        return _FIXED[piece]
    if not piece.startswith("{"):
        return re.escape(piece)
    inside = piece[1:-1]
    numbers = _RANGE.match(inside)
    if numbers is None:
        choices = [re.escape(choice.strip()) for choice in inside.split(",")]
    else:
        choices = [str(n) for n in range(int(numbers[1]), int(numbers[2]) + 1)]
    return f"(?:{'|'.join(choices)})"
