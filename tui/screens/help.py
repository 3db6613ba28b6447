"""What keys do and what signs mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

TEXT = """\
[b]Screens[/b]
1 overview    what every rank does, since when, and who holds it up
2 program     the chosen rank's listing with measured time
3 graph       roots, graphs, buckets, kernels
4 guards      values no variant was compiled for, and what they cost
5 precision   stages, loss scale, skipped steps
6 events      what was said, newest first; / filters

[b]Time[/b]
← →   one step back or on        n p   next or last mark: a guard miss,
space hold, play                       a slow step, a failure, a breach
f     follow the run again

[b]Else[/b]
↑ ↓   choose a rank     r   other runs     t   light or dark     q   quit

[b]Signs[/b]
● trains   ◐ compiles   … waits for others   ▲ others wait for it
✗ failed, refused or gone   ■ ended   ! a service level does not hold

esc closes this page."""


class HelpScreen(ModalScreen[None]):
    """A page over the dashboard."""

    CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll {
        width: 76; max-width: 100%; height: auto; max-height: 100%; background: $surface;
        padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter,space", "close", show=False)
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(TEXT)

    def action_close(self) -> None:
        self.dismiss()
