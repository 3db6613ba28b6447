"""Loss, time of a step and throughput of the last steps, as sparklines with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from sgplan.planner.units import human_time
from sgplan.tui.rows import View
from sgplan.tui.widgets.line import Line

SHOWN = 120
"""Steps in a plot."""


class Plots(Horizontal):
    """Three plots side by side; left out where the screen is too low."""

    DEFAULT_CSS = """
    Plots { height: 3; }
    Plots > .plot { width: 1fr; margin-right: 1; height: 3; }
    Plots Static { height: 1; }
    Plots Line { height: 2; }
    Plots.low { display: none; }
    """

    def compose(self) -> ComposeResult:
        from textual.containers import Vertical

        for name in ("loss", "step", "rate"):
            with Vertical(classes="plot"):
                yield Static(id=f"words-{name}")
                yield Line(id=f"line-{name}")

    def show(self, view: View) -> None:
        """The rank that is chosen; throughput of all of them."""
        self.set_class(self.app.size.height < 14, "low")
        found = view.state.ranks.get(view.rank)
        if found is None:
            return
        seconds = found.seconds.last(SHOWN)
        losses = found.losses.last(SHOWN)
        rates = _rates(view)
        width = self.app.size.width // 3 - 1
        self._put("loss", losses, _ends("loss", losses, lambda value: f"{value:.4g}", width))
        self._put("step", seconds, _ends("step", seconds, human_time, width))
        self._put("rate", rates, _ends("samples/s", rates, lambda value: f"{value:,.0f}", width))

    def _put(self, name: str, values: Sequence[float], text: str) -> None:
        self.query_one(f"#line-{name}", Line).data = values
        words = self.query_one(f"#words-{name}", Static)
        if words.content != text:
            words.update(text, layout=False)  # its size is fixed


def _ends(name: str, values: Sequence[float], say: Callable[[float], str], width: int) -> str:
    """`loss 2.301 (1.94 to 4.2)`: the newest value and, where it fits, the range of the plot."""
    if not values:
        return f"{name} -"
    newest = f"{name} {say(values[-1])}"
    whole = f"{newest} ({say(min(values))} to {say(max(values))})"
    return whole if len(whole) <= width else newest


def _rates(view: View) -> list[float]:
    """Samples per second of the last steps, all ranks together."""
    ranks = [found for found in view.state.ranks.values() if found.seconds]
    if not ranks:
        return []
    count = min(min(len(found.seconds) for found in ranks), SHOWN)
    series = [
        [s / t if t else 0.0 for s, t in zip(samples, seconds, strict=True)]
        for found in ranks
        for samples, seconds in [(found.samples.last(count), found.seconds.last(count))]
    ]
    return [sum(values) for values in zip(*series, strict=True)]
