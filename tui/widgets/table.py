"""A table that draws only what is on the screen and only what has changed.

Textual's DataTable lays out every cell again; with a row for each of hundreds of ranks, several
times a second, that is most of a core. Here a row is one string with styles, compared with the one
that stood there before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from sgplan.tui.cells import Cell, Column, Row, Tone, clipped, fitted, widths


class Table(ScrollView, can_focus=True):
    """Rows under a head, with a cursor.

    Attributes:
        cursor: place of the chosen row.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--head",
        "table--cursor",
        "table--good",
        "table--warn",
        "table--bad",
        "table--dim",
    }
    DEFAULT_CSS = """
    Table { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    Table > .table--head { text-style: bold; color: $text-muted; }
    Table > .table--cursor { background: $primary 30%; }
    Table > .table--good { color: $text-success; }
    Table > .table--warn { color: $text-warning; text-style: bold; }
    Table > .table--bad { color: $text-error; text-style: bold; }
    Table > .table--dim { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "to(0)", show=False),
        Binding("end", "to(-1)", show=False),
    ]

    cursor: reactive[int] = reactive(0)

    class Chosen(Message):
        """The cursor stands on another row."""

        def __init__(self, table: Table, row: int) -> None:
            super().__init__()
            self.table = table
            self.row = row

        @property
        def control(self) -> Table:
            return self.table

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.columns = list(columns)
        self.rows: Sequence[Row] = ()
        self.empty = ""
        self._seen: dict[int, Row] = {}  # as they were drawn last
        self._styles: dict[str, Style] = {}

    def show(self, rows: Sequence[Row], empty: str = "") -> None:
        """Other rows; lines that stay as they are are not drawn again.

        Args:
            empty: what is said when there is no row.
        """
        before, self.rows = self.rows, rows
        seen, self._seen = self._seen, {}
        if len(before) != len(rows) or empty != self.empty:
            self.empty = empty
            self.virtual_size = Size(0, len(rows) + 1)
            self.cursor = min(self.cursor, max(len(rows) - 1, 0))
            self.refresh()
            return
        top, height = self.scroll_offset.y, self.size.height
        self._seen = {n: rows[n] for n in range(top, min(top + height, len(rows)))}
        changed = [place for place, row in self._seen.items() if seen.get(place) != row]
        if changed:  # lines next to each other are drawn at once for less than one by one
            first, last = changed[0], changed[-1]
            self.refresh(Region(0, first + 1 - top, self.size.width, last - first + 1))

    def on_resize(self) -> None:
        self.virtual_size = Size(0, len(self.rows) + 1)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        places = fitted(self.columns, width)
        if y == 0:
            return self._line([Cell(self.columns[n].title) for n in places], places, "head", width)
        place = y - 1 + self.scroll_offset.y
        if place >= len(self.rows):
            text = self.empty if place == 0 else ""
            return Strip([Segment(clipped(text, width), self.rich_style)], width)
        row = self._seen[place] if place in self._seen else self.rows[place]
        self._seen[place] = row
        name = "cursor" if place == self.cursor and self.has_focus else ""
        return self._line([row[n] for n in places], places, name, width)

    def _line(self, cells: Sequence[Cell], places: Sequence[int], name: str, width: int) -> Strip:
        segments: list[Segment] = []
        columns = [self.columns[place] for place in places]
        last = len(columns) - 1
        cut = widths(columns, width)
        for number, (cell, column) in enumerate(zip(cells, columns, strict=True)):
            text = clipped(cell.text, cut[number], right=column.right and number != last)
            segments.append(Segment(text, self._style(name, cell.tone)))
            if number != last:
                segments.append(Segment(" ", self._style(name, "")))
        return Strip(Segment.simplify(segments), width)

    def _style(self, name: str, tone: Tone) -> Style:
        """Of a cell, where the line has a name of its own too."""
        key = f"{name} {tone}"
        if key not in self._styles:
            self._styles[key] = self._made(part for part in (name, tone) if part)
        return self._styles[key]

    def _made(self, parts: Iterable[str]) -> Style:
        """Textual's own style of a component knows neither shades nor the colour `auto`."""
        _, _, background, color = self.colors
        text = Style()
        for part in parts:
            found = self.get_component_styles(f"table--{part}")
            background += found.background
            if found.has_rule("color"):
                color = found.color
            if found.auto_color:
                color = background.get_contrast_text(color.a)
            text += found.text_style
        return Style.from_color((background + color).rich_color, background.rich_color) + text

    def notify_style_update(self) -> None:
        self._styles.clear()
        super().notify_style_update()

    # --- the cursor ------------------------------------------------------------------------------

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, len(self.rows) - 1))

    def watch_cursor(self, before: int, after: int) -> None:
        if before == after:
            return
        top, height = self.scroll_offset.y, max(self.size.height - 1, 1)
        if after < top:
            self.scroll_to(y=after, animate=False)
        elif after >= top + height:
            self.scroll_to(y=after - height + 1, animate=False)
        self.refresh()
        self.post_message(self.Chosen(self, after))

    def action_move(self, by: int) -> None:
        self.cursor += by

    def action_page(self, by: int) -> None:
        self.cursor += by * max(self.size.height - 2, 1)

    def action_to(self, place: int) -> None:
        self.cursor = len(self.rows) - 1 if place < 0 else place

    def on_click(self, event: object) -> None:
        y = getattr(event, "y", 0)
        if y > 0:
            self.cursor = y - 1 + self.scroll_offset.y
