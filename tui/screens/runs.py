"""The runs of this user, newest first, to choose another from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from sgplan.failure import Failure
from sgplan.runfolder import RunFolder, shown
from sgplan.tui.cells import Cell, Column, Row, Rows
from sgplan.tui.widgets.table import Table

RUNS = (
    Column("run", 28, most=34),
    Column("where", 16, rank=1, most=34),
    Column("begun", 12, rank=3),
    Column("outcome", 10),
    Column("steps", 6, right=True, rank=4),
    Column("why", 16, rank=2),
)


def run_rows(folders: Sequence[RunFolder]) -> Sequence[Row]:
    """One row for each run."""
    return Rows(folders, _row)


def _row(folder: RunFolder) -> Row:
    begun, outcome, steps, why = _outcome(folder)
    texts = (folder.path.name, shown(folder.path.parent), begun, outcome, steps, why)
    return tuple(map(Cell, texts))


def _outcome(folder: RunFolder) -> tuple[str, str, str, str]:
    """When it began, how it ended, its steps, and why."""
    try:
        begun = time.strftime("%d %b %H:%M", time.localtime(folder.began))
    except OSError:
        return "-", "gone", "", "it was deleted"
    try:
        report = folder.read_report()
    except Failure as failure:
        return begun, "unreadable", "", str(failure)
    if report is None:
        return begun, "running", "", "or killed"
    outcome, steps = str(report.get("outcome", "-")), str(report.get("steps", "-"))
    return begun, outcome, steps, str(report.get("why") or "")


class RunsScreen(ModalScreen["RunFolder | None"]):
    """Gives the folder that was chosen, or None."""

    CSS = """
    RunsScreen { align: center middle; }
    RunsScreen > Vertical { width: 120; max-width: 100%; height: 80%; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,r", "close", show=False),
        Binding("enter", "choose", show=False),
    ]

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        super().__init__()
        self._folders = list(folders)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("[b]runs[/b]  enter opens, esc goes back")
            yield Table(RUNS, id="table-runs")

    def on_mount(self) -> None:
        table = self.query_one(Table)
        table.show(run_rows(self._folders), "no run is known")
        table.focus()

    def action_choose(self) -> None:
        place = self.query_one(Table).cursor
        self.dismiss(self._folders[place] if place < len(self._folders) else None)

    def action_close(self) -> None:
        self.dismiss(None)
