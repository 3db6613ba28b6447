"""`sgplan explain CODE`: what a diagnostic means. Starts without torch."""

from __future__ import annotations

import argparse
import textwrap
from itertools import groupby

from sgplan.failure import Failure
from sgplan.grammar.check import check_text, sources_of
from sgplan.grammar.code import Code
from sgplan.grammar.codes import CODES, FAMILIES
from sgplan.grammar.render import render_all

_FOUND = {
    "check": "from the text of a plan",
    "graph": "against the captured graph, before the first step",
    "run": "while a command runs",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("explain", help="what a code like SG0203 means")
    parser.add_argument("code", nargs="?", metavar="CODE", help="without it: all codes")


def run(args: argparse.Namespace) -> int:
    """Print one explanation, or the list of codes."""
    print(_list() if args.code is None else _explanation(_find(args.code)))
    return 0


def _find(text: str) -> Code:
    code = text.upper()
    found = CODES.get(code) or CODES.get(f"SG{code}")
    if found is None:
        raise Failure(f"there is no code `{text}`; `sgplan explain` lists all of them")
    return found


def _list() -> str:
    lines: list[str] = []
    for family, codes in groupby(CODES.values(), key=lambda code: code.code[:4]):
        lines += ["", f"{family}xx: {FAMILIES[family]}"]
        lines += [f"  {code.code}  {code.title}" for code in codes]
    return "\n".join(lines[1:])


def _explanation(code: Code) -> str:
    parts = [
        f"{code.code}: {code.title}",
        textwrap.fill(code.why, 88),
        f"found {_FOUND[code.found]}",
    ]
    if code.bad:
        world = "" if code.world is None else f" with --world {code.world}"
        parts += [
            f"for example{world}:\n\n{_indented(code.bad)}",
            _indented(_answer(code)),
            f"instead:\n\n{_indented(code.good)}",
        ]
    return "\n\n".join(part.rstrip() for part in parts)


def _answer(code: Code) -> str:
    """What `check` says of the bad example, this code only."""
    name = "plan.sgplan"
    _, found = check_text(code.bad, name, (), code.world)
    same = [diagnostic for diagnostic in found if diagnostic.code == code.code]
    return render_all(same, sources_of(code.bad, name, ()))


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")
