"""A program in a terminal of its own, seen as a person sees it: keys in, a screen of cells out.

Enough of a terminal for what Textual draws: text, places, styles. What is asked of it stays without
an answer, as with a plain terminal.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from environment import environment

TICKS = os.sysconf("SC_CLK_TCK")
_CONTROL = re.compile(
    rb"\x1b\[([0-9;:<=>?]*)[ -/]*([@-~])"  # with numbers: a place, a style
    rb"|\x1b[\]PX^_].*?(?:\x07|\x1b\\)"  # a text for the terminal
    rb"|\x1b[ -/]*[0-Z\\^-~]",
    re.DOTALL,
)
_QUIET = 0.03
"""Seconds without output after which a drawing is whole."""


class Cell(NamedTuple):
    """One cell with the style that it was written in."""

    text: str = " "
    style: bytes = b""


class Took(NamedTuple):
    """Seconds until an answer, and those of them that the program was on a processor."""

    seconds: float
    busy: float


class Screen:
    """What has been drawn."""

    def __init__(self, width: int, height: int) -> None:
        self.cells = [[Cell()] * width for _ in range(height)]
        self._x = self._y = 0
        self._style = b""
        self._left = b""

    def feed(self, data: bytes) -> None:
        data = self._left + data
        at = 0
        while at < len(data):
            found = _CONTROL.match(data, at)
            if found is not None:
                self._control(found[1], found[2])
                at = found.end()
                continue
            if data[at] == 0x1B:  # not whole yet
                break
            end = data.find(b"\x1b", at)
            end = len(data) if end < 0 else end
            try:
                text = data[at:end].decode()
            except UnicodeDecodeError as error:  # a character that is not whole yet
                if end < len(data) or end - at - error.start > 3:
                    raise
                end = at + error.start
                self._text(data[at:end].decode())
                at = end
                break
            self._text(text)
            at = end
        self._left = data[at:]

    def _control(self, numbers: bytes | None, letter: bytes | None) -> None:
        if letter == b"H":
            line, _, column = (numbers or b"1;1").partition(b";")
            self._y, self._x = int(line or 1) - 1, int(column or 1) - 1
        elif letter == b"m":
            self._style = numbers or b""

    def _text(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._y, self._x = self._y + 1, 0
            elif character == "\r":
                self._x = 0
            elif self._y < len(self.cells) and self._x < len(self.cells[0]):
                self.cells[self._y][self._x] = Cell(character, self._style)
                self._x += 1

    @property
    def lines(self) -> list[str]:
        return ["".join(cell.text for cell in line) for line in self.cells]


class Terminal:
    """A running program; ends it when it is left.

    Args:
        size: columns and lines.
    """

    def __init__(
        self, command: Sequence[str], cwd: Path, size: tuple[int, int] = (120, 36)
    ) -> None:
        self.began = time.monotonic()
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.screen = Screen(*size)
        environ = environment(TERM="xterm-256color", COLORTERM="truecolor")
        self.process = subprocess.Popen(
            command, stdin=far, stdout=far, stderr=far, cwd=cwd, env=environ, start_new_session=True
        )
        os.close(far)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        deadline = time.monotonic() + 5.0
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)
        self.process.kill()
        self.process.wait()
        os.close(self._near)

    # --- what a person does ----------------------------------------------------------------------

    def watch(self, seconds: float) -> None:
        """Let it go on."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)

    @property
    def age(self) -> Took:
        """Since its process was started."""
        return Took(time.monotonic() - self.began, self._on_processor())

    def wait(self, holds: Callable[[Screen], bool], limit: float = 60.0) -> float:
        """Seconds until something stands on the screen.

        Raises:
            TimeoutError: it does not; with what does.
        """
        began = time.monotonic()
        while not holds(self.screen):
            self._read(0.5)
            if self.process.poll() is not None or time.monotonic() - began > limit:
                raise TimeoutError("not on the screen:\n" + "\n".join(self.screen.lines))
        return time.monotonic() - began

    def press(self, keys: bytes, holds: Callable[[Screen], bool]) -> Took:
        """From a key to the drawing that answers it."""
        busy = self._on_processor()
        os.write(self._near, keys)
        return Took(self.wait(holds, 20.0), self._on_processor() - busy)

    def settle(self) -> None:
        """Wait until nothing is drawn for a moment, at most for a second."""
        deadline = time.monotonic() + 1.0
        while self._read(_QUIET) and time.monotonic() < deadline:
            pass

    def _read(self, seconds: float) -> bool:
        """Take in what it draws within some seconds; whether there was anything."""
        if not select.select([self._near], [], [], seconds)[0]:
            return False
        try:
            self.screen.feed(os.read(self._near, 1 << 16))
        except OSError:  # it has ended
            time.sleep(min(seconds, 0.05))
            return False
        return True

    # --- what it costs ---------------------------------------------------------------------------

    def cpu(self) -> float:
        """Seconds of processor time, user and system, that it has used so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def _on_processor(self) -> float:
        """As `cpu`, to a nanosecond, of the threads that live."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def resident(self) -> int:
        """Bytes of memory that it holds now."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
