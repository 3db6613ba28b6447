"""`sgplan doctor`: what is here, what will not work, and what nobody has tried."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgplan.machine import Fact

_SIGNS = {"ok": " ", "warn": "!", "bad": "x"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor", help="versions, cores, compiler, space: what will not work here and why"
    )
    parser.add_argument("--json", action="store_true", help="the same facts as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the facts; status 1 when something cannot work."""
    from sgplan.machine import facts

    found = facts()
    if args.json:
        print(json.dumps([asdict(fact) for fact in found], indent=2))
    else:
        print("\n".join(_line(fact) for fact in found))
        print(_last_line(found))
    return int(any(fact.level == "bad" for fact in found))


def _line(fact: Fact) -> str:
    why = f"\n  {'':<15} {fact.why}" if fact.why else ""
    return f"{_SIGNS[fact.level]} {fact.name:<15} {fact.value}{why}"


def _last_line(found: list[Fact]) -> str:
    bad = [fact.name for fact in found if fact.level == "bad"]
    if bad:
        return f"will not work here: {', '.join(bad)} (lines marked x)"
    return "everything that is built works here; lines marked ! are untested or limited"
