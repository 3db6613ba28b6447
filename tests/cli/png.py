"""Reads the PNG that a browser makes of what it shows (W3C; 8 bit, not interlaced)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

Colour = tuple[int, int, int]
_CHANNELS = {2: 3, 6: 4}


def pixels(path: Path) -> list[Colour]:
    """Red, green and blue of every pixel, row by row."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, packed, width, step = 8, b"", 0, 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, interlaced) == (8, 0)
            step = _CHANNELS[colour]
        elif kind == b"IDAT":
            packed += body
        at += size + 12
    return _colours(zlib.decompress(packed), width * step, step)


def _colours(raw: bytes, stride: int, step: int) -> list[Colour]:
    above = bytearray(stride)
    found: list[Colour] = []
    for start in range(0, len(raw), stride + 1):
        row = bytearray(raw[start + 1 : start + 1 + stride])
        _unfilter(raw[start], row, above, step)
        found += zip(row[0::step], row[1::step], row[2::step], strict=True)
        above = row
    return found


def _unfilter(kind: int, row: bytearray, above: bytearray, step: int) -> None:
    if kind == 0:
        return
    for at in range(len(row)):
        left = row[at - step] if at >= step else 0
        corner = above[at - step] if at >= step else 0
        up = above[at]
        guess = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[kind]
        row[at] = (row[at] + guess) & 255


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))
