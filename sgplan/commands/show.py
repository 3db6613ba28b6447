"""`sgplan show RUN | FILE.sgpx`: what was planned, and how a run went."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sgplan.failure import Failure


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from sgplan.options import add_view_options

    parser = subparsers.add_parser("show", help="a run or a saved plan, without torch")
    parser.add_argument("what", metavar="RUN|FILE.sgpx", help="a run's folder or name, or a file")
    parser.add_argument("--rank", type=int, metavar="R", help="the program of one rank only")
    add_view_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the programs, and for a run what its events say."""
    from sgplan.showing import view_of

    view = view_of(args)
    if Path(args.what).is_dir() or not Path(args.what).exists():
        return _show_run(args.what, args.rank, view)
    return _show_file(Path(args.what), args.rank, view)


def _show_file(path: Path, rank: int | None, view: str) -> int:
    from sgplan.planner import artefact
    from sgplan.showing import print_view, select

    try:
        saved = artefact.read(path)
    except OSError as error:
        raise Failure(f"`{path}` cannot be read: {error.strerror or error}") from error
    print_view(select(saved, rank), view)
    return 0


def _show_run(name: str, rank: int | None, view: str) -> int:
    from sgplan import runfolder
    from sgplan.observer import Observer
    from sgplan.planner import artefact
    from sgplan.refusal import print_diagnostics
    from sgplan.report import recorded, summary_text, to_json
    from sgplan.showing import as_json, print_view, select

    folder = runfolder.find(name)
    plan = folder.read_plan()
    parts = tuple(artefact.read_part(path) for path in folder.parts().values())
    shown = select(artefact.make(plan, parts), rank) if parts else None
    observer = Observer(folder.path)
    observer.finish()
    run, outcome = recorded(folder.read_report(), str(folder.path), plan.source)
    if view == "listing_json":
        report = to_json(run, outcome, observer.summary, observer.verdicts())
        print(json.dumps({"plan": shown and as_json(shown), "report": report}, indent=2))
        return 0
    if shown is not None:
        print_view(shown, view)
    if view == "listing":
        print(summary_text(run, outcome, observer.summary, folder.shown))
    found = [diagnostic for diagnostic, _ in observer.summary.diagnostics]
    print_diagnostics([*found, *observer.verdicts()], plan.sources())
    return 0
