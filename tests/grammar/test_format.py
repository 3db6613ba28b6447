"""The canonical layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from sgplan.grammar.format import format_document
from sgplan.grammar.parse import parse

FOLDER = Path(__file__).parent / "layouts"
LAYOUTS = sorted(FOLDER.glob("*.sgplan"))


def formatted(body: str) -> str:
    text = format_document(parse(f"sgplan 1\n{dedent(body)}", "plan.sgplan"))
    return text.removeprefix("sgplan 1\n\n")


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_layout_is_as_recorded(path: Path, golden: Callable[[Path, str], None]) -> None:
    text = format_document(parse(path.read_text(encoding="utf-8"), path.name))
    golden(path.with_suffix(".txt"), text)
    assert format_document(parse(text, path.name)) == text


def test_every_layout_is_used() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {path.stem for path in LAYOUTS}


def test_block_that_fits_stands_on_one_line() -> None:
    assert formatted("sync {\n bucket=25MiB,\n overlap  =prefer\n}") == (
        "sync { bucket = 25MiB  overlap = prefer }\n"
    )


def test_braces_of_neighbours_are_aligned() -> None:
    assert formatted("mesh { }\nupdate { when = step }\n\nsync { }") == (
        "mesh   { }\nupdate { when = step }\n\nsync { }\n"
    )


def test_comment_parts_neighbours() -> None:
    assert formatted("mesh { }\n# why\nupdate { }") == "mesh { }\n# why\nupdate { }\n"


def test_trailing_comment_stays_with_its_line() -> None:
    assert formatted("mesh { data = rest }     # all") == "mesh { data = rest }  # all\n"


def test_block_with_a_comment_inside_is_not_joined() -> None:
    assert formatted("sync { bucket = 25MiB # big\n}") == "sync {\n  bucket = 25MiB  # big\n}\n"


def test_blank_lines_come_one_at_a_time() -> None:
    assert formatted("mesh { }\n\n\n\nsync { }\n\n\n") == "mesh { }\n\nsync { }\n"


def test_block_too_wide_has_one_attribute_a_line() -> None:
    body = 'checkpoint { every = 50steps  to = "' + "x" * 70 + '" }'
    assert formatted(body).split("\n")[:2] == ["checkpoint {", "  every = 50steps"]


def test_line_of_exactly_the_width_is_kept() -> None:
    body = 'checkpoint { to = "' + "x" * 78 + '" }'
    assert len(body) == 100
    assert formatted(body) == f"{body}\n"


def test_padding_never_makes_a_line_too_wide() -> None:
    wide = "host { cores = auto  malloc = tuned  threads = 4  chunk = adaptive  numa = auto }"
    text = formatted(f'recompute "a_label_that_is_quite_long" {{ every = 2modules }}\n{wide}')
    assert all(len(line) <= 100 for line in text.split("\n"))


def test_long_list_has_one_item_a_line() -> None:
    items = ", ".join(f'"layers.{i}.mlp"' for i in range(8))
    assert formatted(f"let mlps = [{items}]").startswith('let mlps = [\n  "layers.0.mlp",\n')


def test_long_string_is_left_alone() -> None:
    body = f'let long = "{"x" * 120}"'
    assert formatted(body) == f"{body}\n"


def test_comment_inside_a_value_moves_in_front() -> None:
    assert formatted("sync { bucket = # odd\n 25MiB }") == "sync {\n  # odd\n  bucket = 25MiB\n}\n"


def test_comments_above_the_header_stay_there() -> None:
    text = "# first\n\nsgplan   1   # v\nmesh {}\n"
    assert format_document(parse(text, "p")) == "# first\n\nsgplan 1  # v\n\nmesh { }\n"


def test_windows_line_ends_become_plain_ones() -> None:
    text = "sgplan 1\r\n\r\nmesh { } # a\r\n"
    assert format_document(parse(text, "p")) == "sgplan 1\n\nmesh { }  # a\n"
