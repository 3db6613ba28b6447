"""`python -m sgplan.served SERVER FOLDER`: the dashboard behind one page of `top --web`.

Started by `pages.py` with textual-serve's driver in its environment, so that it draws to its
standard output. Takes the server's pid, with which it dies, and a run folder.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from textual import events

from sgplan import process, runfolder, runs
from sgplan.tui.app import Dashboard


class ServedDashboard(Dashboard):
    """Looked at also while keys go to another window: it does not dim then.

    The driver says that a page has no focus when it opens, and may say so after the browser has
    said that it has.
    """

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.AppBlur):
            await super().on_event(event)


def main() -> None:
    process.die_with_parent(signal.SIGKILL, int(sys.argv[1]))
    ServedDashboard(runfolder.RunFolder(Path(sys.argv[2])), runs.recent).run()


if __name__ == "__main__":
    main()
