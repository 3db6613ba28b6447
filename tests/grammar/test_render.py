"""How a diagnostic is laid out."""

from __future__ import annotations

from sgplan.grammar.diagnostics import Diagnostic, Label, Span
from sgplan.grammar.render import COLOUR, render, render_all
from sgplan.grammar.scan import Places

TEXT = "sgplan 1\nmesh { data = 4  pipe = 2 }\n\n\tsync { bucket = 25 }\n"
NAME = "plan.sgplan"


def at(words: str, text: str = "") -> Label:
    start = TEXT.index(words)
    return Label(Places(NAME, TEXT).span(start, start + len(words)), text)


def shown(*labels: Label, **more: object) -> list[str]:
    primary, *secondary = labels
    diagnostic = Diagnostic("SG0000", "a fact", primary, tuple(secondary), **more)  # pyright: ignore[reportArgumentType]
    return render(diagnostic, {NAME: TEXT}).split("\n")


def test_one_label_stands_beside_its_underline() -> None:
    assert shown(at("4", "this")) == [
        "error[SG0000]: a fact",
        " --> plan.sgplan:2:15",
        "  |",
        "2 | mesh { data = 4  pipe = 2 }",
        "  |               ^ this",
        "",
    ]


def test_two_labels_of_a_line_hang_below_each_other() -> None:
    assert shown(at("2 }", "later"), at("data = 4", "earlier"))[4:] == [
        "  |        --------         ^^^ later",
        "  |        |",
        "  |        earlier",
        "",
    ]


def test_lines_that_are_left_out_are_marked() -> None:
    assert shown(at("25"), at("pipe = 2"))[3:6] == [
        "2 | mesh { data = 4  pipe = 2 }",
        "  |                  --------",
        "  :",
    ]


def test_tabs_keep_the_caret_under_its_word() -> None:
    lines = shown(at("25"))
    assert lines[3].index("25") == lines[4].index("^^")


def test_notes_and_help_close_the_message() -> None:
    lines = shown(at("25"), notes=("one", "two"), help="do this")
    assert lines[-5:] == ["  |", "  = note: one", "  = note: two", "  = help: do this", ""]


def test_diagnostic_without_a_place_has_no_excerpt() -> None:
    diagnostic = Diagnostic("SG0901", "no step ran", help="train", severity="warning")
    assert render(diagnostic, {}) == "warning[SG0901]: no step ran\n  = help: train\n"


def test_unknown_source_is_named_and_not_shown() -> None:
    diagnostic = Diagnostic("SG0000", "a fact", Label(Span("gone", 0, 1, 7, 3)))
    assert render(diagnostic, {}) == "error[SG0000]: a fact\n --> gone:7:3\n"


def test_span_at_the_end_of_the_text_is_one_caret() -> None:
    end = Label(Places(NAME, TEXT).span(len(TEXT), len(TEXT)))
    assert shown(end)[-2].strip() == "| ^"


def test_span_over_lines_is_underlined_to_the_end_of_its_first() -> None:
    lines = shown(at("pipe = 2 }\n\n\tsync"))
    assert lines[4].endswith("^" * len("pipe = 2 }"))


def test_other_source_has_its_own_excerpt() -> None:
    other = Label(Span("--set", 0, 4, 1, 1), "set here")
    diagnostic = Diagnostic("SG0000", "a fact", other, (at("25", "and here"),))
    lines = render(diagnostic, {NAME: TEXT, "--set": "sync.by=stock"}).split("\n")
    assert lines[1] == " --> --set:1:1"
    assert " ::: plan.sgplan:4:18" in lines


def test_colour_changes_no_character() -> None:
    import re

    diagnostic = Diagnostic("SG0000", "a fact", at("25", "this"), (at("4", "that"),), help="do")
    plain = render(diagnostic, {NAME: TEXT})
    coloured = render(diagnostic, {NAME: TEXT}, COLOUR)
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [row.rstrip() for row in stripped.split("\n")] == plain.split("\n")
    assert coloured != plain


def test_several_are_parted_by_a_blank_line() -> None:
    one = Diagnostic("SG0000", "a fact")
    assert render_all([one, one], {}) == "error[SG0000]: a fact\n\nerror[SG0000]: a fact\n"


def underlined(text: str, words: str) -> tuple[str, str]:
    """The source line as shown, and the line below it."""
    start = text.index(words)
    label = Label(Places(NAME, text).span(start, start + len(words)))
    lines = render(Diagnostic("SG0000", f"`{words}`", label), {NAME: text}).split("\n")
    return lines[3][4:], lines[4][4:]


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    assert underlined("日本 here", "here")[1] == "     ^^^^"
    assert underlined("e\u0301 here", "here")[1] == "  ^^^^"


def test_nothing_in_a_plan_reaches_the_terminal_as_a_command() -> None:
    shown_line, marks = underlined("\x1b[2J\u202e here", "here")
    assert (shown_line, marks) == ("␛[2J\ufffd here", "      ^^^^")
    message = render(Diagnostic("SG0000", "`\x1b\n`", help="\x07"), {})
    assert message == "error[SG0000]: `␛␊`\n  = help: ␇\n"


def test_a_long_line_is_shown_around_its_mark() -> None:
    shown_line, marks = underlined("x " * 400 + "here" + " y" * 400, "here")
    assert len(shown_line) == 162
    assert shown_line[marks.index("^") :].startswith("here")
    assert (shown_line[0], shown_line[-1]) == ("…", "…")
