"""The runs of this folder, newest first, to choose another from."""

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
from sgplan.runfolder import RunFolder
from sgplan.tui.cells import Cell, Column, Row
from sgplan.tui.widgets.table import Table

RUNS = (
    Column("run", 34),
    Column("begun", 12, rank=2),
    Column("outcome", 9),
    Column("steps", 6, right=True, rank=3),
    Column("why", 30, rank=1),
)


def run_rows(folders: Sequence[RunFolder]) -> list[Row]:
    """One row for each run."""
    return [_row(folder) for folder in folders]


def _row(folder: RunFolder) -> Row:
    try:
        began = folder.path.stat().st_ctime
    except OSError:
        return (Cell(folder.path.name), Cell("-"), Cell("gone"), Cell(""), Cell("it was deleted"))
    begun = time.strftime("%d %b %H:%M", time.localtime(began))
    try:
        report = folder.read_report()
    except Failure as failure:
        return (
            Cell(folder.path.name),
            Cell(begun),
            Cell("unreadable"),
            Cell(""),
            Cell(str(failure)),
        )
    if report is None:
        return (Cell(folder.path.name), Cell(begun), Cell("running"), Cell(""), Cell("or killed"))
    return (
        Cell(folder.path.name),
        Cell(begun),
        Cell(str(report.get("outcome", "-"))),
        Cell(str(report.get("steps", "-"))),
        Cell(str(report.get("why") or "")),
    )


class RunsScreen(ModalScreen["RunFolder | None"]):
    """Gives the folder that was chosen, or None."""

    CSS = """
    RunsScreen { align: center middle; }
    RunsScreen > Vertical { width: 100; max-width: 100%; height: 80%; background: $surface; }
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
        table.show(run_rows(self._folders), "no run below .sgplan/runs")
        table.focus()

    def action_choose(self) -> None:
        place = self.query_one(Table).cursor
        self.dismiss(self._folders[place] if place < len(self._folders) else None)

    def action_close(self) -> None:
        self.dismiss(None)
