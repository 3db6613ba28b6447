"""A plot of two lines of cells: Textual's sparkline, drawn for a tenth of its cost.

Textual makes a Rich renderable of every value, twice. What is seen is the same: bars in eighths, in
the colour between that of the least value and that of the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.renderables._blend_colors import blend_colors
from textual.strip import Strip
from textual.widgets import Sparkline

BARS = "▁▂▃▄▅▆▇█"


class Line(Sparkline):
    """A sparkline."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__((), id=id)
        self._strips: list[Strip] = []

    def watch_data(self) -> None:
        self._strips = []

    def notify_style_update(self) -> None:
        self._strips = []
        super().notify_style_update()

    def on_resize(self) -> None:
        self._strips = []

    def render_line(self, y: int) -> Strip:
        if not self._strips:
            self._strips = self._drawn(self.data or (), *self.size)
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def _drawn(self, data: Sequence[float], width: int, height: int) -> list[Strip]:
        low, high = (self._colour(f"sparkline--{end}-color") for end in ("min", "max"))
        blank = self.rich_style
        if not data:
            blank = Style(bgcolor=blank.bgcolor)
        levels = _levels(data, width)
        eighths = [int(level * (len(BARS) * height - 1)) for level in levels]
        styles = [blank + Style.from_color(blend_colors(low, high, level)) for level in levels]
        strips: list[Strip] = []
        for below in range(len(BARS) * (height - 1), -1, -len(BARS)):
            segments = [
                Segment(BARS[min(eighth - below, len(BARS) - 1)], style)
                if eighth >= below
                else Segment(" ", blank)
                for eighth, style in zip(eighths, styles, strict=True)
            ]
            strips.append(Strip(Segment.simplify(segments), width))
        return strips

    def _colour(self, name: str) -> Color:
        _, base = self.background_colors
        return (base + self.get_component_styles(name).color).rich_color


def _levels(data: Sequence[float], width: int) -> list[float]:
    """The largest value behind every cell, from 0 to 1 between the ends of all of them.

    What is no number, a loss that overflowed, stands as high as the largest.
    """
    if len(data) < 2:
        return [float(len(data))] * width
    finite = [value for value in data if isfinite(value)]
    least, largest = min(finite, default=0.0), max(finite, default=0.0)
    extent = largest - least or 1
    if len(finite) < len(data):
        data = [value if isfinite(value) else least + extent for value in data]
    ends = [len(data) * cell // width for cell in range(width + 1)]
    parts = [data[a:b] for a, b in pairwise(ends) if b > a]
    step, at = len(parts) / width, 0.0
    levels: list[float] = []
    for _ in range(width):
        levels.append((max(parts[int(at)]) - least) / extent)
        at += step
    return levels
