"""The end of a run: refusals are shown, ranks' parts merged, the report written, the summary told.

Knows the order of the last words. Judging the run is `verdict.py`.
"""

from __future__ import annotations

import sys

from sgplan.execution import Executed
from sgplan.planner import artefact
from sgplan.refusal import print_diagnostics
from sgplan.report import Outcome, headline, summary_text, to_json


def conclude(done: Executed, outcome: Outcome) -> artefact.Artefact | None:
    """Write `run.sgpx` and `report.json`, and show what the ranks refused or warned of.

    Returns:
        The merged artefact, None when no rank wrote a part, or the folder was deleted.
    """
    found = [diagnostic for diagnostic, _ in done.summary.diagnostics]
    ours = [] if outcome.diagnostic is None else [outcome.diagnostic]
    print_diagnostics([*found, *done.damage, *ours], done.plan.sources())
    if done.gone:
        return None
    done.folder.write_report(to_json(done.run, outcome, done.summary, done.damage))
    return merge(done)


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
    text = summary_text(done.run, outcome, done.summary, _shown(done))
    print(text, file=sys.stderr, flush=True)


def tell_failure(done: Executed, outcome: Outcome) -> None:
    """With `--quiet`: one line, and only when the run failed."""
    if outcome.why:
        line = headline(done.run, outcome, done.summary)
        print(f"sgplan: {line} ({_shown(done)})", file=sys.stderr, flush=True)


def _shown(done: Executed) -> str:
    return f"{done.folder.shown}, deleted" if done.gone else done.folder.shown


TELL = {"shown": tell, "silent": tell_failure}
