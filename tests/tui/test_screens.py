"""What a person sees: every screen at three sizes, from the recorded events of real runs."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from textual.widgets import Input

from sgplan.interpreter import events
from sgplan.runfolder import PLAN, RunFolder
from sgplan.tui.app import TABS, Dashboard
from sgplan.tui.player import Player
from sgplan.tui.screens.runs import run_rows
from sgplan.tui.source import Source
from sgplan.tui.widgets.table import Table
from tests.conftest import Golden

from .build import attached, folder

HERE = Path(__file__).parent
SIZES = ((120, 36), (80, 24), (20, 5))
AFTER = 6_000_000_000
"""How long after the last sign of a rank the screens are looked at, in nanoseconds."""

BEGAN = 1_764_500_000  # of the newest of the runs, in seconds since the epoch

OF_EVERY_RUN = ("healthy", "storm", "hang", "slow", "fails")
SHOWN = [(run, "overview") for run in OF_EVERY_RUN] + [
    ("healthy", "program"),
    ("healthy", "graph"),
    ("storm", "guards"),
    ("healthy", "precision"),
    ("fails", "events"),
]


def opened(folder: RunFolder) -> Player:
    """A recorded run as it was looked at while its processes lived, if it had no end."""
    source = Source(folder, alive=lambda pid, born: True)
    now = max((position.since_ns for position in source.positions().values()), default=0) + AFTER
    return Player(source, now=lambda: now)


def dashboard(run: str) -> Dashboard:
    return Dashboard(RunFolder(HERE / "runs" / run), make=opened)


def picture(app: Dashboard) -> str:
    """The screen as SVG, without what differs from machine to machine."""
    svg = app.export_screenshot(simplify=True)
    return re.sub(r"[ \t]+\n", "\n", svg)


async def pressed(app: Dashboard, size: tuple[int, int], *keys: str) -> str:
    async with app.run_test(size=size) as pilot:
        app.tick()
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        app.tick()
        await pilot.pause()
        return picture(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(("run", "tab"), SHOWN, ids=lambda name: str(name))
def test_a_screen(golden: Golden, run: str, tab: str, size: tuple[int, int]) -> None:
    number = next(n for n, each in enumerate(TABS, 1) if each.name == tab)
    svg = asyncio.run(pressed(dashboard(run), size, str(number)))
    golden(HERE / "screens" / f"{run}-{tab}-{size[0]}x{size[1]}.svg", svg)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("name", "key"), [("help", "question_mark"), ("light", "t")], ids=lambda name: str(name)
)
def test_the_overview_in_light_and_the_help_over_it(
    golden: Golden, name: str, key: str, size: tuple[int, int]
) -> None:
    svg = asyncio.run(pressed(dashboard("hang"), size, key))
    golden(HERE / "screens" / f"hang-{name}-{size[0]}x{size[1]}.svg", svg)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_runs_of_this_machine(
    golden: Golden, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.chdir(tmp_path)  # what a person reads is where runs lie from here
    runs: list[RunFolder] = []
    for hours, name in enumerate(OF_EVERY_RUN):
        run = RunFolder(shutil.copytree(HERE / "runs" / name, tmp_path / "runs" / name))
        began = BEGAN - 3600 * hours
        os.utime(run.path / PLAN, (began, began))
        runs.append(run)
    try:
        svg = asyncio.run(pressed(Dashboard(runs[0], lambda: runs, make=opened), size, "r"))
    finally:
        monkeypatch.undo()
        time.tzset()
    golden(HERE / "screens" / f"runs-{size[0]}x{size[1]}.svg", svg)


def text(app: Dashboard) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


@pytest.mark.parametrize(
    ("run", "point"),
    [
        ("healthy", "■ ended   4 of 4 ranks"),
        ("storm", "guard"),
        ("hang", "▲ rank 2 holds up the others"),
        ("slow", "▲ rank 1 is slow: the others wait"),
        ("fails", "✗ failed: rank 2 raised after step 0: FileNotFoundError"),
    ],
)
def test_the_first_line_says_how_a_run_is(run: str, point: str) -> None:
    async def look() -> str:
        app = dashboard(run)
        async with app.run_test(size=(100, 30)) as pilot:
            app.tick()
            await pilot.pause()
            return text(app).splitlines()[0]

    assert point in asyncio.run(look())


@pytest.mark.parametrize("words", ["[Bold]x[/Bold]", "[$accent]y", "a\\[b]", "[@click=app.quit]z"])
def test_words_of_a_script_are_no_markup(words: str, tmp_path: Path) -> None:
    ended = events.ScriptEnded("raised", words, 3, 0)
    run = folder(tmp_path, (0, 0.0, attached(0)), (0, 1.0, ended))

    async def look() -> str:
        app = Dashboard(run)
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause()
            return text(app).splitlines()[0]

    assert f"rank 0 raised after step 3: {words}" in asyncio.run(look())


def test_time_goes_back_step_by_step_and_to_marks() -> None:
    async def look() -> list[tuple[int, bool]]:
        app = dashboard("storm")
        seen: list[tuple[int, bool]] = []
        async with app.run_test(size=(100, 30)) as pilot:
            app.tick()
            for key in ("left", "left", "right", "p", "f"):
                await pilot.press(key)
                await pilot.pause()
                seen.append((app.player.state.step, app.player.live))
        return seen

    (back, more, on, mark, followed) = asyncio.run(look())
    assert back[0] >= more[0] <= on[0]
    assert [live for _, live in (back, more, on, mark)] == [False] * 4
    assert followed == (40, True)


def test_keys_of_the_screens_help_and_filter() -> None:
    async def look() -> tuple[str, str, str]:
        app = dashboard("fails")
        async with app.run_test(size=(100, 30)) as pilot:
            app.tick()
            await pilot.press("question_mark")
            await pilot.pause()
            helped = text(app)
            await pilot.press("escape")
            await pilot.press("slash", *"shard")
            await pilot.pause()
            filtered = text(app)
            await pilot.press("escape")
            await pilot.press("tab")
            await pilot.pause()
            return helped, filtered, text(app)

    helped, filtered, overview = asyncio.run(look())
    assert "others wait for it" in helped
    assert "train-00002.bin" in filtered
    assert "attached" not in filtered
    assert "waits for" in overview


def test_a_terminal_of_any_size_is_survived() -> None:
    """B127: down to 20x5 and back."""

    async def look() -> str:
        app = dashboard("hang")
        async with app.run_test(size=(100, 30)) as pilot:
            for size in ((20, 5), (1, 1), (300, 100), (80, 24)):
                await pilot.resize_terminal(*size)
                app.tick()
                await pilot.pause()
            return text(app)

    assert "holds up" in asyncio.run(look())


def test_another_run_is_shown_at_the_rank_of_the_cursor_and_unfiltered() -> None:
    def rank_and_words(app: Dashboard) -> tuple[int, int, str, str]:
        cursor = app.query_one("#table-overview", Table).cursor
        return cursor, app.player.rank, app.player.words, app.query_one("#filter", Input).value

    async def look() -> tuple[int, int, str, str]:
        runs = [RunFolder(HERE / "runs" / name) for name in ("healthy", "slow")]
        app = Dashboard(runs[1], lambda: runs, make=opened)
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.press("down", "down", "slash", *"loss", "enter", "r", "enter")
            await pilot.pause()
            assert app.player.source.folder == runs[0]
            return rank_and_words(app)

    assert asyncio.run(look()) == (2, 2, "", "")


def test_a_run_that_was_deleted_is_listed_as_gone(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", (0, 0.0, attached(0)))
    shutil.rmtree(run.path)
    assert [cell.text for cell in run_rows([run])[0]][3] == "gone"
