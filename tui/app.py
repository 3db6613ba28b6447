"""The dashboard: one run on several screens, redrawn a few times in a second.

Everything that is shown comes from a `View`; this module knows keys, layout and when to draw. It
only reads: commands to a run will get a line of their own between `#head` and `#body`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Input, Static

from sgplan.runfolder import RunFolder
from sgplan.tui import rows, words
from sgplan.tui.cells import Column, Row
from sgplan.tui.player import FIRST, Player
from sgplan.tui.rows import View
from sgplan.tui.screens.help import HelpScreen
from sgplan.tui.screens.runs import RunsScreen
from sgplan.tui.source import Source
from sgplan.tui.widgets.plots import Plots
from sgplan.tui.widgets.table import Table

PERIOD = 0.5
"""Seconds between two drawings."""

PIECE = 0.06
"""Seconds between two readings of a run that is not read to its end yet."""

LATER = 1.0
"""Seconds after which the planner is loaded, whether a program is looked at or not."""

LOW = 10
"""Lines below which only the verdict, the tabs and the table are shown."""


@dataclass(frozen=True, slots=True)
class Tab:
    """One screen: its key is its place, from 1.

    Attributes:
        listing: whether it shows the program of a rank, which is not read otherwise.
    """

    name: str
    columns: Sequence[Column]
    rows: Callable[[View], Sequence[Row]]
    empty: str
    listing: bool = False


def _planner() -> None:
    """Load what shows programs; the first frame does without."""
    import_module("sgplan.tui.listing")


def _program_rows(view: View) -> Sequence[Row]:
    from sgplan.tui.listing import program_rows

    return program_rows(view)


def _graph_rows(view: View) -> Sequence[Row]:
    from sgplan.tui.listing import graph_rows

    return graph_rows(view)


TABS = (
    Tab("overview", rows.RANKS, rows.rank_rows, "no rank has attached yet"),
    Tab("program", rows.PROGRAM, _program_rows, "no rank has written its program yet", True),
    Tab("graph", rows.GRAPH, _graph_rows, "no model has been found yet", True),
    Tab("guards", rows.GUARDS, rows.guard_rows, "no guard was missed"),
    Tab("precision", rows.PRECISION, rows.precision_rows, "the plan has no precision stage"),
    Tab("events", rows.EVENTS, rows.event_rows, "nothing to show"),
)


_ALWAYS = ("#head", "#tabs", "#slider", "#keys", "#plots", *(f"#table-{tab.name}" for tab in TABS))


class Dashboard(App[None]):
    """One run.

    Args:
        folder: of the run to be shown first.
        runs: finds the runs that can be chosen, newest first.
        make: opens a run folder; tests give clocks of their own.
        choose: begins with the list of runs over the one that is shown.
    """

    TITLE = "sgplan"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Dashboard { overflow: hidden; }
    Screen { overflow: hidden; }
    #head { height: 2; }
    .low #head { height: 1; }
    .low #keys { display: none; }
    .low #slider { display: none; }
    #tabs { height: 1; background: $panel; }
    #body { height: 1fr; }
    #filter { height: 1; border: none; display: none; }
    #filter.open { display: block; }
    #slider { height: 1; background: $panel; }
    #keys { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"tab({n - 1})", tab.name, show=False) for n, tab in enumerate(TABS, 1)),
        Binding("tab", "next_tab(1)", show=False, priority=True),
        Binding("shift+tab", "next_tab(-1)", show=False, priority=True),
        Binding("left", "step(-1)", show=False),
        Binding("right", "step(1)", show=False),
        Binding("p,N", "jump(-1)", show=False),
        Binding("n", "jump(1)", show=False),
        Binding("space", "play", show=False),
        Binding("f", "follow", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "leave_filter", show=False, priority=True),
        Binding("r", "runs", show=False),
        Binding("t", "theme", show=False),
        Binding("question_mark", "help", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self,
        folder: RunFolder,
        runs: Callable[[], list[RunFolder]] = list,
        make: Callable[[RunFolder], Player] = lambda folder: Player(Source(folder)),
        choose: bool = False,
    ) -> None:
        super().__init__()
        self._choose = choose
        self._make = make
        self._runs = runs
        self.player = make(folder)
        self._tab = 0
        self._view = View(self.player.state)

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)  # words of scripts are no markup
        yield Static(id="tabs")
        with ContentSwitcher(id="body", initial="pane-overview"):
            for tab in TABS:
                with Vertical(id=f"pane-{tab.name}"):
                    if tab.name == "overview":
                        yield Plots(id="plots")
                    yield Table(tab.columns, id=f"table-{tab.name}")
        yield Input(placeholder="show only lines with …", id="filter", compact=True)
        yield Static(id="slider", markup=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.player.take_in(FIRST)
        self.action_tab(0)
        self.set_timer(LATER, lambda: self.run_worker(_planner, thread=True))
        if not self.is_headless:  # a process of our own: a test keeps its garbage
            gc.freeze()  # what is loaded stays; going through it would hold up keys for 50 ms
        self._pieces = self.set_interval(PIECE, self._read_on, pause=not self.player.reading)
        self.set_interval(PERIOD, self.tick)
        if self._choose:
            self.action_runs()

    # --- drawing ---------------------------------------------------------------------------------

    @property
    def base(self) -> Screen[None]:
        """The screen of the run; help and the list of runs come over it."""
        return self.screen_stack[0]

    def tick(self) -> None:
        self.player.tick()
        self.draw()
        if self.player.reading:
            self._pieces.resume()

    def _read_on(self) -> None:
        """Take in more of a long run; the next tick draws it."""
        self.player.take_in()
        if not self.player.reading:
            self._pieces.pause()

    def draw(self) -> None:
        """Draw what has changed on the screen that is shown."""
        if not self._is_whole():
            return
        tab = TABS[self._tab]
        view = self._view = self.player.view(tab.listing)
        width, height = self.size
        self.base.set_class(height < LOW, "low")
        self._put("#head", words.head(view, self.player.source.folder.path.name, width))
        self._put("#tabs", words.tabs([t.name for t in TABS], self._tab, width))
        self._put("#slider", words.slider(self.player, view.end is not None, width))
        self._put("#keys", words.keys(self.player.live, width))
        if tab.name == "overview":
            self.base.query_one(Plots).show(view)
        self.base.query_one(f"#table-{tab.name}", Table).show(tab.rows(view), tab.empty)

    def _is_whole(self) -> bool:
        """Whether everything that is always drawn is there: neither too early nor taken down."""
        try:
            for selector in _ALWAYS:  # one by one: those that were found are remembered
                self.base.query_one(selector)
        except NoMatches:
            return False
        return True

    def _put(self, selector: str, text: str) -> None:
        static = self.base.query_one(selector, Static)
        if static.content != text:
            static.update(text, layout=False)  # its size is fixed

    def on_resize(self) -> None:
        if self.is_mounted:
            self.call_after_refresh(self.draw)

    def on_table_chosen(self, chosen: Table.Chosen) -> None:
        if chosen.table.id == "table-overview":
            ranks = sorted(self._view.where)
            if chosen.row < len(ranks):
                self.player.rank = ranks[chosen.row]

    # --- keys ------------------------------------------------------------------------------------

    def action_tab(self, number: int) -> None:
        self._tab = number
        self.base.query_one(ContentSwitcher).current = f"pane-{TABS[number].name}"
        self.base.query_one(f"#table-{TABS[number].name}", Table).focus()
        self.draw()

    def action_next_tab(self, by: int) -> None:
        self.action_tab((self._tab + by) % len(TABS))

    def action_step(self, by: int) -> None:
        self.player.step(by)
        self.draw()

    def action_jump(self, by: int) -> None:
        self.player.jump(by)
        self.draw()

    def action_play(self) -> None:
        """Stop where we are, or go on from there."""
        if self.player.live:
            self.player.hold()
        else:
            self.player.playing = not self.player.playing
        self.draw()

    def action_follow(self) -> None:
        self.player.follow()
        self.draw()

    def action_filter(self) -> None:
        self.action_tab(len(TABS) - 1)
        box = self.base.query_one("#filter", Input)
        box.add_class("open")
        box.focus()

    def action_leave_filter(self) -> None:
        box = self.base.query_one("#filter", Input)
        if box.has_class("open"):
            box.value = ""
            box.remove_class("open")
            self.action_tab(self._tab)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.player.words = event.value.lower()
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.base.query_one(f"#table-{TABS[self._tab].name}", Table).focus()

    def action_theme(self) -> None:
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_runs(self) -> None:
        self.push_screen(RunsScreen(self._runs()), self._chosen)

    def _chosen(self, folder: RunFolder | None) -> None:
        if folder is None:
            return
        chosen = self.player.rank
        self.player.source.close()
        self.player = self._make(folder)
        self.player.rank = chosen  # where the cursor stands
        self.action_leave_filter()
        self.tick()

    def on_click(self, event: object) -> None:
        """A click on a name in the line of tabs, or on the slider."""
        widget, x = getattr(event, "widget", None), getattr(event, "x", 0)
        if widget is self.base.query_one("#tabs"):
            found = words.tab_at([t.name for t in TABS], self._tab, self.size.width, x)
            if found is not None:
                self.action_tab(found)
        elif widget is self.base.query_one("#slider"):
            self.player.to_share(words.share_at(x, self.size.width))
            self.draw()
