"""Many ranks, many records: what is drawn, read and held does not grow with them."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.strip import Strip

from sgplan.interpreter import events
from sgplan.interpreter.counter import Position
from sgplan.runfolder import RunFolder
from sgplan.tui.app import Dashboard
from sgplan.tui.cells import Cell, Column, Row, Rows
from sgplan.tui.rows import RANKS, View
from sgplan.tui.state import HISTORY, RunState
from sgplan.tui.waiting import whereabouts
from sgplan.tui.widgets.line import BARS, _levels
from sgplan.tui.widgets.table import Table

from .build import BEGIN, SECOND, after, attached, folder, miss, step

MANY = 512
SIZE = (120, 36)
WHY = "RuntimeError: the loader of this rank cannot go on, its shard is gone; " * 8


def run_of_many(path: Path) -> RunFolder:
    """B125: every rank has long texts in every place that shows one."""
    said: list[tuple[int, float, Any]] = []
    for rank in range(MANY):
        said += [(rank, 0.0, attached(rank, MANY)), (rank, 0.5, events.ClockAligned(0, 1))]
        said += [(rank, float(number), step(number)) for number in (1, 2, 3)]
        said += [(rank, 3.5, miss(new=WHY)), (rank, 4.0, events.NoteAdded(WHY, WHY))]
        said += [(rank, 5.0, events.MemoryMeasured(1 << 40, 1 << 40, 0))]
        said += [(rank, 6.0, events.ScriptEnded("raised", f"rank {rank}: {WHY}", 3, 0))]
    return folder(path, *said)


def lines(app: Dashboard) -> list[str]:
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


async def pressed(pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
    await pilot.pause()


def test_the_cursor_goes_through_512_ranks_and_cells_are_clipped(tmp_path: Path) -> None:
    run = run_of_many(tmp_path / "run")

    async def look() -> dict[str, list[str]]:
        app = Dashboard(run)
        seen: dict[str, list[str]] = {}
        async with app.run_test(size=SIZE) as pilot:
            while app.player.reading:
                app.player.take_in()
            app.tick()
            await pilot.pause()
            seen["begin"] = lines(app)
            await pressed(pilot, "down", "down", "pagedown")
            seen["chosen"] = [str(app.player.rank)]
            await pressed(pilot, "end")
            seen["end"] = lines(app)
            seen["last"] = [str(app.player.rank)]
            for tab in "456":
                await pressed(pilot, tab)
                seen[tab] = lines(app)
        return seen

    seen = asyncio.run(look())
    assert int(seen["chosen"][0]) > 2
    assert seen["last"] == [str(MANY - 1)]
    assert any(line.startswith(" 511 ✗ failed") for line in seen["end"])
    assert not any(line.startswith("   0 ") for line in seen["end"])
    for name in ("begin", "end", "4", "5", "6"):
        assert len(seen[name]) == SIZE[1]
        assert {len(line) for line in seen[name]} == {SIZE[0]}, name
    assert all(any("…" in line for line in seen[name]) for name in ("begin", "4", "6"))


def test_a_long_run_is_drawn_before_it_is_read_and_read_on_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgplan.tui.app.FIRST", 0.0)  # as if it were longer
    monkeypatch.setattr("sgplan.tui.app.PERIOD", 3600.0)  # no other drawing
    said: list[tuple[int, float, Any]] = [(rank, 0.0, attached(rank, 8)) for rank in range(8)]
    said += [(rank, float(n), step(n)) for n in range(1, 200) for rank in range(8)]
    run = folder(tmp_path / "run", *said)

    drawn: list[View] = []

    class Seen(Dashboard):
        def draw(self) -> None:
            super().draw()
            drawn.append(self._view)

    async def look() -> None:
        app = Seen(run)
        async with app.run_test(size=SIZE) as pilot:
            while app.player.reading:
                await pilot.pause(0.05)
            app.draw()

    asyncio.run(look())
    first, last = next(view for view in drawn if view.where), drawn[-1]
    assert (first.reading, len(first.where)) == (True, 8)
    assert (last.reading, last.state.step) == (False, 199)


class Alone(App[None]):
    """A table and nothing that redraws it."""

    def compose(self) -> ComposeResult:
        yield Drawn(RANKS)


class Drawn(Table):
    """A table that tells which lines it was asked for."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__(columns)
        self.asked: set[int] = set()

    def render_line(self, y: int) -> Strip:
        self.asked.add(y)
        return super().render_line(y)


def test_rows_are_made_when_they_are_seen_and_drawn_when_they_have_changed() -> None:
    made: list[int] = []

    def rows(changed: int) -> Rows[int]:
        def row(number: int) -> Row:
            made.append(number)
            return tuple(Cell(f"{number}{'!' * (number == changed)}") for _ in RANKS)

        return Rows(range(MANY), row)

    async def look() -> tuple[int, set[int], set[int]]:
        async with Alone().run_test(size=SIZE) as pilot:
            table = pilot.app.query_one(Drawn)
            table.show(rows(changed=-1))
            await pilot.pause()
            first = len(set(made))
            table.asked.clear()
            table.show(rows(changed=-1))
            await pilot.pause()
            equal = set(table.asked)
            table.show(rows(changed=7))
            await pilot.pause()
            return first, equal, set(table.asked)

    first, equal, other = asyncio.run(look())
    assert 0 < first <= SIZE[1]
    assert equal == set()
    assert other == {8}  # under the head


def test_what_a_run_holds_does_not_grow_with_its_steps() -> None:
    def packed(steps: int) -> int:
        said = [(0, float(n), step(n)) for n in range(1, steps + 1)]
        return len(pickle.dumps(after((0, 0.0, attached(0, 1)), *said)))

    assert packed(20 * HISTORY) - packed(HISTORY) < 100


@pytest.mark.parametrize("waiting", [MANY - 1, MANY // 2])
def test_of_512_ranks_it_is_known_who_waits_for_whom(waiting: int) -> None:
    places = {
        rank: Position("wait b0" if rank < waiting else "backward", BEGIN, 3, 1)
        for rank in range(MANY)
    }
    found = whereabouts(RunState(), places, BEGIN + 5 * SECOND)
    held_up = tuple(range(waiting))
    for rank in range(MANY):
        assert found[rank].waits_for == (tuple(range(waiting, MANY)) if rank < waiting else ())
        assert found[rank].holds_up == (() if rank < waiting else held_up)


@pytest.mark.parametrize(
    ("data", "width", "levels"),
    [
        ([], 3, [0.0, 0.0, 0.0]),
        ([7.0], 2, [1.0, 1.0]),
        ([0.0, 4.0, 1.0, 2.0], 2, [1.0, 0.5]),
        ([1.0, 3.0], 4, [0.0, 0.0, 1.0, 1.0]),
        ([1.0, float("nan"), 3.0], 3, [0.0, 1.0, 1.0]),
        ([float("inf"), float("nan")], 2, [1.0, 1.0]),
    ],
)
def test_a_plot_stands_between_the_ends_of_its_values(
    data: list[float], width: int, levels: list[float]
) -> None:
    assert _levels(data, width) == levels


def test_a_loss_that_is_no_number_is_plotted(tmp_path: Path) -> None:
    losses = (2.0, 1.0, float("nan"), float("inf"))
    said = [(0, float(n), step(n, loss=loss)) for n, loss in enumerate(losses, 1)]
    run = folder(tmp_path, (0, 0.0, attached(0, 1)), *said)

    async def look() -> list[str]:
        app = Dashboard(run)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            return lines(app)

    assert any(BARS[-1] in line for line in asyncio.run(look())[4:6])


def test_a_recorded_run_opens_without_torch(tmp_path: Path) -> None:
    """By the path of the command line, in a process that draws a frame and shows a program."""
    recorded = Path(__file__).parent / "runs" / "healthy"
    watch = """
import os, sys
from textual.app import App
from sgplan import cli

os.isatty = lambda descriptor: True  # what is drawn goes nowhere

async def auto(pilot):
    await pilot.pause()
    for key in "123456":
        await pilot.press(key)
    await pilot.pause()
    pilot.app.exit()

run = App.run
App.run = lambda app: run(app, headless=True, auto_pilot=auto)
status = cli.main(["top", sys.argv[1]])
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "lark"})
print(f"ended {status} with {loaded}", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", watch, str(recorded)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "ended 0 with []" in done.stderr, done.stderr
