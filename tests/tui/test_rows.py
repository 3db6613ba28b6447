"""What screens say, as rows: pure functions of a view."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from sgplan.interpreter import events
from sgplan.tui.cells import clipped
from sgplan.tui.rows import View, event_rows, rank_rows, spans
from sgplan.tui.state import RunState
from sgplan.tui.waiting import Where

from .build import after, attached, step


def events_of(state: RunState, words: str = "") -> list[list[str]]:
    return [[cell.text for cell in row] for row in event_rows(View(state, words=words))]


def test_what_many_ranks_say_in_one_step_is_one_line() -> None:
    """B129."""
    said = [(rank, 0.0, attached(rank, 64)) for rank in range(64)]
    said += [(rank, 1.0, events.ScriptEnded("returned", "", 3, 0)) for rank in range(64)]
    last, first = events_of(after(*said))
    assert last[2:] == ["x64", "info", "script: returned after step 3"]
    assert first[2] == "x64"


def test_a_filter_looks_at_everything_that_a_line_says() -> None:
    state = after(
        (0, 0.0, attached(0)),
        (1, 0.0, attached(1)),
        (1, 1.0, events.NoteAdded("plan", "no gradients")),
        (0, 2.0, events.ScriptEnded("raised", "ValueError: bad shard", 0, 0)),
    )
    assert [row[-1] for row in events_of(state, "error")] == [
        "script: raised after step 0: ValueError: bad shard"
    ]
    assert len(events_of(state, "plan")) == 1
    assert events_of(state, "nowhere") == []


def test_a_rank_row_says_whom_it_waits_for() -> None:
    state = after((0, 0.0, attached(0)), (1, 0.0, attached(1)), (0, 1.0, step(1)))
    where = {
        0: Where(0, "wait b0", 1, 12.0, waits_for=(1,)),
        1: Where(1, "script", 1, 13.0, holds_up=(0,), gone=True),
    }
    victim, cause = ([cell.text for cell in row] for row in rank_rows(View(state, where)))
    assert (victim[1], victim[3], victim[4], victim[-1]) == ("… waits", "wait b0", "12 s", "rank 1")
    assert (cause[1], cause[-1]) == ("✗ gone", "holds up rank 0")


def test_ranks_are_named_in_short() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0..2, 5, 7..8"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red     "),
        ("\x1b]0;title\x07a\tb\r\n", "a b     "),
        ("a\x07\u202eb\ud800", "a\ufffd\ufffdb\ufffd   "),
        ("漢字漢字", "漢字漢字"),
        ("漢字漢字漢", "漢字漢 …"),
        ("a漢字漢字漢", "a漢字漢…"),
        ("123456789", "1234567…"),
    ],
)
def test_a_text_takes_its_cells_and_moves_no_cursor(text: str, shown: str) -> None:
    assert clipped(text, 8) == shown
    assert cell_len(shown) == 8
    assert clipped(text, 0) == ""
