"""The nearest known name to one that is not known, or nothing when none is close."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The closest of the known names; None when more than a third of the word would change.

    Of a word of two or three letters the first must stay: `gpu` is no misspelt `cpu`.
    """
    allowed = max(1, (len(word) + 1) // 3) if len(word) > 1 else 0
    if len(word) <= 3:
        known = [name for name in known if name[:1].lower() == word[:1].lower()]
    scored = sorted((_edits(word.lower(), name.lower()), name) for name in known)
    if not scored or scored[0][0] > allowed or scored[0][0] >= len(word):
        return None
    return scored[0][1]


def _edits(a: str, b: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours that turn one into the other."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            cost = min(row[j] + 1, current[j - 1] + 1, row[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, row = row, current
    return row[-1]


def joined(words: Iterable[str], last: str = "or") -> str:
    """`a`, `b` or `c`."""
    quoted = [f"`{word}`" for word in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
