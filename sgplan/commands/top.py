"""`sgplan top [RUN]`: the dashboard of a run that goes on, or of a recorded one."""

from __future__ import annotations

import argparse
from pathlib import Path

LOOPBACK = "127.0.0.1"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "top",
        help="the dashboard of a run, live or recorded",
        epilog="It only reads the run folder: opening, closing or killing it does not touch the "
        "training.",
    )
    parser.add_argument(
        "which",
        metavar="RUN",
        nargs="?",
        help="a run's folder or name (default: the newest of this directory, else a choice of all)",
    )
    parser.add_argument(
        "--web", action="store_true", help="serve it to a browser on this machine instead"
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="of --web (default: any that is free)"
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", help=f"of --web, to listen on (default: {LOOPBACK})"
    )


def run(args: argparse.Namespace) -> int:
    """Show the dashboard; returns 0 when it is closed."""
    from sgplan import runfolder, runs
    from sgplan.failure import Failure

    if not args.web and (args.port, args.host) != (None, None):
        raise Failure("`--port` and `--host` belong to `--web`: add it")
    here = runs.here() if args.which is None else [runfolder.find(args.which)]
    known = here or runs.recent()
    if not known:
        raise Failure(
            f"there is no run below {runfolder.RUNS}, and none of yours elsewhere on this machine: "
            "name a run folder"
        )
    folder = known[0]
    if args.web:
        _serve(folder.path, LOOPBACK if args.host is None else args.host, args.port or 0)
        return 0
    from sgplan import beside

    beside.require_terminal()
    from sgplan.tui.app import Dashboard

    Dashboard(folder, runs.recent, choose=not here).run()
    return 0


def _serve(folder: Path, host: str, port: int) -> None:
    from sgplan.failure import Failure

    if not 0 <= port < 65536:
        raise Failure(f"there is no port {port}: ports are 1 to 65535")
    try:
        from sgplan.web import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("aiohttp", "textual_serve"):
            raise
        raise Failure(
            f"`--web` needs {error.name}, which is not installed: "
            "`pip install 'textual-serve>=1.1.3,<2'` (the extra `web` of sgplan)"
        ) from error
    serve(folder, host, port)
