"""Literate pages: Markdown whose `sgplan` blocks are plans.

A comment `# error: SG0203` (or `# note: SG0702`) at the end of a line says what `check` must find
on that line, and nothing else may be found. "Not built yet" (SG0230) is left out of account unless
a page names it: pages are about the language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_BLOCK = re.compile(
    r"^```sgplan(?P<arguments>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_EXPECTED = re.compile(r"#\s*(?:error|note): ((?:SG\d{4}[ ,]*)+)")


@dataclass(frozen=True, slots=True)
class Example:
    """One plan of a page.

    Attributes:
        place: `page.md:line`, for messages.
        text: of the plan; a header is added when it has none and the page does not want one.
        world: from the fence, `sgplan world=6`.
        expected: line and code of every diagnostic.
    """

    place: str
    text: str
    world: int | None
    expected: frozenset[tuple[int, str]]


def examples(page: str) -> list[Example]:
    """Every plan of a page."""
    markdown = (HERE / page).read_text(encoding="utf-8")
    return [_example(page, markdown, match) for match in _BLOCK.finditer(markdown)]


def _example(page: str, markdown: str, match: re.Match[str]) -> Example:
    line = markdown[: match.start()].count("\n") + 1
    arguments = dict(word.split("=") for word in match["arguments"].split())
    text = match["text"] if arguments.get("header") == "none" else f"sgplan 1\n{match['text']}"
    expected = frozenset(
        (number, code)
        for number, row in enumerate(text.split("\n"), 1)
        if (found := _EXPECTED.search(row))
        for code in re.findall(r"SG\d{4}", found.group(1))
    )
    world = int(arguments["world"]) if "world" in arguments else None
    return Example(f"{page}:{line}", text, world, expected)
