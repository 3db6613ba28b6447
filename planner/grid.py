"""The time-by-rank grid: what every rank does, row by row, with the failing row marked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from sgplan.planner.instruction_text import format_instruction
from sgplan.planner.program import Instruction, Program
from sgplan.planner.words import GAP


def render_grid(programs: Sequence[Program], rank: int, line: int | None) -> str:
    """Time downwards, ranks across.

    Args:
        rank, line: `>` stands before that row and before that rank's cell; no mark for None.
    """
    streams = [[_cell(i) for i in program.instructions()] for program in programs]
    rows = [[f"rank {program.rank}" for program in programs]]
    rows += [list(row) for row in zip_longest(*streams, fillvalue="")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown: list[str] = []
    for place, row in enumerate(rows, start=-1):
        marked = line is not None and place == line
        cells = [
            (">" if marked and program.rank == rank else " ") + cell.ljust(width)
            for program, cell, width in zip(programs, row, widths, strict=True)
        ]
        number = "" if place < 0 else str(place)
        shown.append(f"{'>' if marked else ' '}{number:>4} {'  '.join(cells)}".rstrip())
    return "\n".join(shown)


def _cell(line: Instruction) -> str:
    """The instruction without its place in a graph, which would widen the grid."""
    return format_instruction(line).partition(GAP)[0]
