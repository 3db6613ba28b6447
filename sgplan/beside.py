"""`apply --tui`: the run in a process of its own, the dashboard on the terminal.

The run is the very `apply` that it would be without `--tui`, forked off into a session of its own:
closing or killing the dashboard leaves the training alone. What the script prints goes to the run's
logs and not over the screens; what sgplan itself has to say comes when the run has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from types import FrameType
from typing import TYPE_CHECKING

from sgplan import launch, runfolder, runs
from sgplan.failure import Failure
from sgplan.observer import Observer
from sgplan.runfolder import RunFolder

if TYPE_CHECKING:
    from sgplan.execution import Request
    from sgplan.summary import Summary

WORDS = "sgplan.log"
"""What sgplan says of the run, beside the logs of the script's own output."""

_BEGINS = 20.0  # seconds for the run to write its plan
_TURN = 0.1
_LAST_LINES = 20
_TAIL = 16384  # bytes in which they are looked for


def apply(request: Request, carry_out: Callable[[Request], int]) -> int:
    """Carry out a request with the dashboard before it; returns the run's exit status.

    Args:
        carry_out: what is done without the dashboard; it is called in a process of its own.

    Raises:
        Failure: the command cannot be found, or the run folder cannot be used.
    """
    launch.require_program(request.command)
    from sgplan.tui.app import Dashboard

    folder = runfolder.create(request.run_dir, PurePath(request.plan.source).stem or "plan")
    with _Fork(folder.log / WORDS) as fork:
        if fork.is_run:
            return carry_out(replace(request, run_dir=str(folder.path), progress="unseen"))
        if _begun(folder, fork):
            dashboard = Dashboard(folder, runs.recent)
            fork.on_end = dashboard.exit
            dashboard.run()
        _see_out(folder, fork, quiet=request.progress == "silent")
        if fork.status:
            _show_end(Path(folder.shown) / "log" / "stderr.log")
        sys.stderr.write(fork.said())
        if fork.killed_by:
            name = signal.Signals(fork.killed_by).name
            print(f"sgplan: the run's own process was ended by {name}", file=sys.stderr)
        return fork.status


def require_terminal() -> None:
    """Refuse to draw where nobody could see it or press a key.

    Raises:
        Failure: one of the three standard streams is no terminal.
    """
    streams = (("input", 0), ("output", 1), ("error", 2))
    for name, descriptor in streams:
        if not os.isatty(descriptor):
            raise Failure(f"the dashboard needs a terminal, and the standard {name} is none")


class _Fork:
    """The run's process, from both sides; signals to us until its end are for the run.

    Used as a context in which two processes go on: in the run `is_run` is True, its script's
    output goes to the run's logs alone, and what sgplan says goes to `words`.
    """

    def __init__(self, words: Path) -> None:
        self.words = words
        self.status = 0
        self.killed_by = 0
        self.on_end: Callable[[], object] | None = None
        self._pid: int | None = None
        self._pending: list[int] = []
        self._ended = False

    def __enter__(self) -> _Fork:
        self._before = {
            each: signal.signal(each, self._pass_on) for each in (signal.SIGINT, signal.SIGTERM)
        }
        self.words.touch()
        # Opened now: the run folder may be deleted before the run has ended.
        self._said = self.words.open(encoding="utf-8", errors="replace")
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        self.is_run = pid == 0
        if self.is_run:
            self._restore()
            self._become_run()
        else:
            self._pid = pid
            while self._pending:
                os.kill(pid, self._pending.pop(0))
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_run:
            self._restore()

    def _restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _become_run(self) -> None:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        # The script's bytes go to descriptors 1 and 2, our own words to `sys.stderr`.
        sys.stderr = self.words.open("w", encoding="utf-8", buffering=1)

    def _pass_on(self, signum: int, _: FrameType | None) -> None:
        if self._pid is None:
            self._pending.append(signum)
        elif not self._ended:
            os.kill(self._pid, signum)
        if self.on_end is not None and signum == signal.SIGTERM:
            self.on_end()

    def said(self) -> str:
        """What sgplan has said of the run."""
        with self._said as file:
            return file.read()

    def has_ended(self) -> bool:
        """Whether the run's process has ended; `status` has its exit status then, and
        `killed_by` the signal that ended it, or 0."""
        if not self._ended:
            assert self._pid is not None
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._ended = True
                code = os.waitstatus_to_exitcode(status)
                self.killed_by = max(0, -code)
                self.status = 128 - code if code < 0 else code
        return self._ended


def _begun(folder: RunFolder, fork: _Fork) -> bool:
    """Whether there is a run to be shown."""
    deadline = time.monotonic() + _BEGINS
    while not (folder.path / runfolder.PLAN).exists():
        if fork.has_ended() or time.monotonic() > deadline:
            return False
        time.sleep(_TURN)
    return True


def _see_out(folder: RunFolder, fork: _Fork, quiet: bool) -> None:
    """Wait for a run that goes on without the dashboard."""
    from sgplan import progress

    if fork.has_ended():
        return
    print(
        f"sgplan: the run goes on; `sgplan top {folder.shown}` shows it, Ctrl-C ends it",
        file=sys.stderr,
        flush=True,
    )
    observer = Observer(folder.path)

    def poll() -> Summary:
        observer.poll()
        return observer.summary

    screen = progress.Silent() if quiet else progress.TerminalLine(poll, sys.stderr)
    while not fork.has_ended():
        screen.tick(free=True)
        time.sleep(_TURN)
    screen.clear()


def _show_end(log: Path) -> None:
    """What a script said when it failed, which without the dashboard would be on the screen."""
    if not log.exists():
        return
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
    if lines:
        print(f"sgplan: the end of {log}:", *lines, sep="\n", file=sys.stderr)
