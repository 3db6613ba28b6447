"""Every diagnostic code: its title, what it means, a plan that raises it and one that does not.

This module is the index and the shape of an entry; the entries stand in `codes_language.py`
(SG01xx, SG02xx), `codes_plan.py` (what blocks mean to one another) and `codes_run.py` (what only a
captured graph or a run can show). A new code is one entry there; tests run the examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgplan.grammar.code import Code
from sgplan.grammar.codes_language import LANGUAGE_CODES
from sgplan.grammar.codes_plan import PLAN_CODES
from sgplan.grammar.codes_run import RUN_CODES

if TYPE_CHECKING:
    from collections.abc import Mapping

CODES: Mapping[str, Code] = {
    entry.code: entry
    for entry in sorted((*LANGUAGE_CODES, *PLAN_CODES, *RUN_CODES), key=lambda entry: entry.code)
}

FAMILIES = {
    "SG01": "syntax",
    "SG02": "names, units and types",
    "SG03": "mesh and placement",
    "SG04": "schedule",
    "SG05": "capture, reduction and update",
    "SG06": "fuse, separate and operator",
    "SG07": "guard, precision and recompute",
    "SG08": "checkpoint and recovery",
    "SG09": "run time",
    "SG10": "artefact and agreement",
}
