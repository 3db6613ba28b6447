"""Names of the numeric cases, for the tests: `cases.py` imports as a script's neighbour only."""

from __future__ import annotations

import ast
from pathlib import Path


def _listed(table: str) -> tuple[str, ...]:
    """The names in a table of `cases.py`, read from its text."""
    tree = ast.parse((Path(__file__).parent / "cases.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == table:
            assert isinstance(node.value, ast.Tuple)
            return tuple(item.id for item in node.value.elts if isinstance(item, ast.Name))
    raise LookupError(table)


REQUIRED = _listed("REQUIRED")
FURTHER = _listed("FURTHER")
