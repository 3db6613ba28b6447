"""Sizes and counts for eyes: `24.9 MiB`, `21.9 GFLOP`. Nothing here is read back."""

from __future__ import annotations

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def human_bytes(count: int | None) -> str:
    """`24.9 MiB`; empty when not known."""
    return "" if count is None else _scaled(count, 1024, _BYTES)


def human_flops(count: int | None) -> str:
    """`21.9 GFLOP`; empty when not known."""
    return "" if count is None else _scaled(count, 1000, _FLOPS)


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 gradient`, `62 gradients`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def _scaled(count: int, step: int, units: tuple[str, ...]) -> str:
    value, unit = float(count), 0
    # 999.95 would print as 1000.0, so the next unit begins where rounding would reach it.
    while value >= step - 0.05 and unit + 1 < len(units):
        value, unit = value / step, unit + 1
    return f"{count} {units[0]}" if unit == 0 else f"{value:.1f} {units[unit]}"
