"""Starts the user's command under the plan and stays with it until its last process has ended.

Knows the environment that makes a Python attach, signals, and whose bytes go where. It never starts
ranks itself and never looks into the command's output.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from sgplan import process
from sgplan.failure import Failure
from sgplan.streams import Stream

GRACE = 5.0
_WAKE = 0.25
_ENDING_WAKE = 0.02
_DRAIN = 1.0
# SIGINT and SIGHUP of a terminal reach a whole process group, the others one process.
_TO_GROUP = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_TO_CHILD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Screen(Protocol):
    """What stands on the terminal beside the child's bytes."""

    def clear(self) -> None:
        """Take it off, bytes of the child follow."""
        ...

    def tick(self, free: bool) -> None:
        """Time has passed; `free` says that the cursor stands at the start of a line."""
        ...


def environment(folder: Path, mode: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: `inherited` plus the protocol between us and the ranks."""
    inject = str(Path(__file__).resolve().parent / "inject")
    path = inherited.get("PYTHONPATH")
    left_by_us = {"SGPLAN_RANK_PID", "SGPLAN_RANK_OF", "SGPLAN_ATTACHING"}
    return {
        **{name: value for name, value in inherited.items() if name not in left_by_us},
        "SGPLAN_RUN": str(folder.resolve()),
        "SGPLAN_MODE": mode,
        "SGPLAN_PARENT": str(os.getpid()),
        "PYTHONPATH": f"{inject}{os.pathsep}{path}" if path else inject,
    }


def _die_with(parent: int) -> None:
    """In a child that runs nothing yet: ask to be ended with us.

    Until it runs its program it has our handlers, and one of Python's would keep the signal from
    ending it.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    process.die_with_parent(signal.SIGTERM, parent)


def require_program(command: Sequence[str]) -> None:
    """Refuse a command that is missing or cannot be found, before anything is written.

    Raises:
        Failure: with the one line to print.
    """
    if not command:
        raise Failure("no command given: write it behind `--`, as in `-- torchrun train.py`")
    if shutil.which(command[0]) is None:
        raise Failure(f"the command `{command[0]}` cannot be found or is not executable")


class Job:
    """One run of the command.

    Args:
        stdout: the descriptor its standard output goes to: 2 when ours carries a result.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], log: Path, stdout: int = 1
    ) -> None:
        self._command = list(command)
        self._environ = environ
        self._streams = [Stream(stdout, log / "stdout.log"), Stream(2, log / "stderr.log")]
        self._child: subprocess.Popen[bytes] | None = None
        self._pending: list[int] = []
        self._interrupted = False
        self.killed = False

    def run(self, screen: Screen) -> int:
        """Start the command and stay until it and everything below it has ended.

        Returns:
            Its exit status, 128 + N when signal N ended it.
        """
        process.become_subreaper()
        handled = self._handle_signals()
        wake, notify = os.pipe()
        os.set_blocking(notify, False)
        old_wakeup = signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
        try:
            self._start()
            self._pump(screen, wake)
        finally:
            signal.set_wakeup_fd(old_wakeup)
            for signum, handler in handled.items():
                signal.signal(signum, handler)
            for descriptor in (wake, notify):
                os.close(descriptor)
            for stream in self._streams:
                stream.close()
        return self._status()

    def _start(self) -> None:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self._child = subprocess.Popen(
            self._command,
            env=dict(self._environ),
            stdout=self._streams[0].child_end,
            stderr=self._streams[1].child_end,
            # A session of its own: Ctrl-C reaches us alone, and we decide what follows.
            start_new_session=True,
            preexec_fn=lambda: _die_with(parent),
        )
        for stream in self._streams:
            stream.child_started()
        while self._pending:
            self._send(self._pending.pop(0))

    def _handle_signals(self) -> dict[int, signal.Handlers | Callable[..., object] | int | None]:
        """Install our handlers; a signal that is ignored (`nohup`) stays ignored."""
        old: dict[int, signal.Handlers | Callable[..., object] | int | None] = {}
        for signum in (*_TO_GROUP, *_TO_CHILD):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                old[signum] = signal.signal(signum, self._on_signal)
        old[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._on_resize)
        # The handler only has to exist: the wake-up descriptor then ends the wait at once.
        old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return old

    def _on_resize(self, _signum: int, _frame: FrameType | None) -> None:
        for stream in self._streams:
            stream.copy_window_size()

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGINT and self._interrupted:
            self.killed = True
        self._interrupted = self._interrupted or signum == signal.SIGINT
        if self._child is None:
            self._pending.append(signum)
        else:
            self._send(signum)

    def _send(self, signum: int) -> None:
        assert self._child is not None
        if self._child.returncode is not None:
            return
        try:
            if signum in _TO_GROUP:
                os.killpg(self._child.pid, signum)
            else:
                os.kill(self._child.pid, signum)
        except ProcessLookupError:
            return

    def _pump(self, screen: Screen, wake: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            for stream in self._streams:
                selector.register(stream.source, selectors.EVENT_READ, stream)
            while not self._ended():
                self._turn(screen, selector, wake, _WAKE)
            ending = process.Ending(GRACE)
            while not self._nobody_left(ending):
                self._turn(screen, selector, wake, _ENDING_WAKE)
                self._reap()
            deadline = time.monotonic() + _DRAIN
            while len(selector.get_map()) > 1 and time.monotonic() < deadline:
                self._turn(screen, selector, wake, _ENDING_WAKE)
        self._reap()
        screen.clear()

    def _turn(
        self, screen: Screen, selector: selectors.BaseSelector, wake: int, timeout: float
    ) -> None:
        for key, _ in selector.select(timeout):
            if key.data is None:
                os.read(wake, 4096)
                continue
            data = key.data.read()
            if data:
                screen.clear()
                key.data.forward(data)
            else:
                selector.unregister(key.fileobj)
        screen.tick(all(s.ended_line for s in self._streams if s.terminal))

    def _ended(self) -> bool:
        assert self._child is not None
        self._reap()
        return self.killed or self._child.returncode is not None

    def _nobody_left(self, ending: process.Ending) -> bool:
        if self.killed:
            ending.hurry()
        return ending.step()

    def _reap(self) -> None:
        assert self._child is not None
        self._child.poll()
        process.reap_strangers(self._child.pid)

    def _status(self) -> int:
        if self.killed:
            return 128 + signal.SIGINT
        assert self._child is not None
        status = self._child.wait()
        return 128 - status if status < 0 else status
