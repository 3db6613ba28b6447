"""The end of a run: refusals are shown, ranks' parts merged, the report written, the summary told.

Knows the order of the last words. Judging the run is `verdict.py`.
"""

from __future__ import annotations

import sys

from sgplan.execution import Executed
from sgplan.planner import artefact
from sgplan.refusal import print_diagnostics
from sgplan.report import Outcome, summary_text, to_json


def conclude(done: Executed, outcome: Outcome) -> artefact.Artefact | None:
    """Write `run.sgpx` and `report.json`, and show what the ranks refused or warned of.

    Returns:
        The merged artefact, None when no rank wrote a part.
    """
    found = [diagnostic for diagnostic, _ in done.summary.diagnostics]
    print_diagnostics([*found, *done.damage], done.plan.sources())
    merged = merge(done)
    done.folder.write_report(to_json(done.run, outcome, done.summary, done.damage))
    return merged


def merge(done: Executed) -> artefact.Artefact | None:
    """The artefact of all parts that ranks wrote, saved in the run folder.

    Raises:
        Refused: a part is damaged.
    """
    parts = tuple(artefact.read_part(path) for path in done.folder.parts().values())
    if not parts:
        return None
    merged = artefact.make(done.plan, parts)
    artefact.write(done.folder.artefact, merged)
    return merged


def tell(done: Executed, outcome: Outcome) -> None:
    """The summary on stderr."""
    text = summary_text(done.run, outcome, done.summary, done.folder.shown)
    print(text, file=sys.stderr, flush=True)


def tell_failure(done: Executed, outcome: Outcome) -> None:
    """With `--quiet`: one line, and only when the run failed."""
    if outcome.why:
        print(f"sgplan: {outcome.why} ({done.folder.shown})", file=sys.stderr, flush=True)
