"""One output of the child: its bytes go on unchanged, and a copy goes to the run's log.

A stream is a pty when its target is a terminal (so that the child sees one), else a pipe. Knows
nothing of what the bytes mean.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import termios
from pathlib import Path

_CHUNK = 65536


class Stream:
    """From the child's `child_end` to `target`, with a copy in `log`."""

    def __init__(self, target: int, log: Path) -> None:
        self.terminal = os.isatty(target)
        self.source, self.child_end = _open_pty() if self.terminal else os.pipe()
        self.ended_line = True
        self._target: int | None = target
        self._log = log.open("ab", buffering=0)
        self.copy_window_size()

    def copy_window_size(self) -> None:
        """Give the child's terminal the size of ours."""
        if self.terminal and self._target is not None:
            try:
                size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
                fcntl.ioctl(self.source, termios.TIOCSWINSZ, size)
            except OSError:
                return

    def child_started(self) -> None:
        """Drop our copy of the child's end, so that the end of its writers can be seen."""
        os.close(self.child_end)

    def read(self) -> bytes:
        """What is there; empty when every writer has gone."""
        try:
            return os.read(self.source, _CHUNK)
        except OSError as error:
            if error.errno == errno.EIO:  # how a pty says that its other end is closed
                return b""
            raise

    def forward(self, data: bytes) -> None:
        """Pass `data` on. A target that has gone is given up; the log still gets everything."""
        self._log.write(data)
        self.ended_line = data.endswith(b"\n")
        if self._target is not None:
            try:
                _write_all(self._target, data)
            except OSError:
                self._target = None

    def close(self) -> None:
        os.close(self.source)
        self._log.close()


def _open_pty() -> tuple[int, int]:
    master, slave = os.openpty()
    attributes = termios.tcgetattr(slave)
    # Output processing would turn \n into \r\n on the way; our own terminal does that once.
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    return master, slave


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            select.select([], [target], [])
