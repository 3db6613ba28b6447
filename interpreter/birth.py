"""When a process was born: two that had one id, one after the other, are told apart by it.

Ids are used again, at the latest after a reboot. Linux counts the ticks of its clock from the boot
to the birth of a process, and gives every boot an id (proc(5)). Standard library only.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

_START = 19
"""Place of the start time behind the name of a process in its `stat`."""


class Birth(NamedTuple):
    """Ticks from the boot to the birth, 0 where the system does not tell; the boot's 16 bytes."""

    ticks: int = 0
    boot: bytes = bytes(16)


UNTOLD = Birth()


def birth_of(pid: int) -> Birth:
    """Of a process of this machine."""
    try:
        # The name of a program stands in brackets and may hold blanks and brackets.
        behind = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return Birth(int(behind[_START]), _boot())
    except (OSError, ValueError, IndexError):
        return UNTOLD


def lives(pid: int, born: Birth) -> bool:
    """Whether the process that was born then is there; by its id alone where nothing was told."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a number of a damaged file is no process
        return False
    except PermissionError:
        pass
    found = birth_of(pid) if born.ticks else born
    return found == born or not found.ticks


@cache
def _boot() -> bytes:
    return UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
