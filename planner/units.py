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


def human_share(value: float | None) -> str:
    """A share of 1 as `34.7 %`; `-` when it is not known."""
    return "-" if value is None else f"{100 * value:.1f} %"


def human_rate(value: float | None) -> str:
    """Things per second as `2,574` or `17.3`; `-` when it is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def human_time(value: float) -> str:
    """Seconds as `1.20 s`, `3.40 ms`, `56.0 us`."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.2f} ms" if value >= 1e-3 else f"{1e6 * value:.1f} us"
