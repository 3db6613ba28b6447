"""Processes of one job on Linux: who lives below us, and how nobody outlives us.

Knows `prctl` and `/proc`; knows nothing of plans, ranks or what the processes do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# SIGKILL needs no grace, but a process in an uninterruptible read can take a while to go.
_KILL_PATIENCE = 10.0


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def die_with_parent(signum: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Ask the kernel for `signum` when our parent dies; if it already has, take it now.

    Args:
        signum: sent to this process.
        parent: the pid our parent must have, when the caller knows it. Without it only a death
            during this call is noticed.

    The kernel watches the *thread* that started us: a launcher that starts ranks from a thread
    which then ends would end them too. torchrun and `subprocess` in a main thread do not.
    """
    expected = os.getppid() if parent is None else parent
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != expected:
        os.kill(os.getpid(), signum)


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent dies, so that none gets away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, parents before their children; zombies left out."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    dead: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _state_and_parent(entry)) is not None:
            state, parent = stat
            children[parent].append(int(entry.name))
            if state in "ZX":
                dead.add(int(entry.name))
    found, queue = [], list(children[pid])
    while queue:
        current = queue.pop(0)
        queue.extend(children[current])
        if current not in dead:
            found.append(current)
    return found


def _state_and_parent(entry: Path) -> tuple[str, int] | None:
    try:
        stat = (entry / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name stands in parentheses and may hold anything, parentheses included.
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[0], int(fields[1])


def reap_strangers(child: int) -> None:
    """Collect ended processes that became ours, but leave the exit status of `child` alone."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == child:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


class Ending:
    """Ends every descendant of this process: SIGTERM first, SIGKILL after `grace` seconds.

    `step` does not block, so that the last words of those that end are still forwarded.
    """

    def __init__(self, grace: float) -> None:
        self._deadline = time.monotonic() + grace
        self._asked: set[int] = set()

    def hurry(self) -> None:
        """No more grace: whoever is left gets SIGKILL at the next step."""
        self._deadline = min(self._deadline, time.monotonic())

    def step(self) -> bool:
        """Signal who is left; True when nobody is, or nobody can be ended."""
        alive = descendants(os.getpid())
        late = time.monotonic() >= self._deadline
        for pid in alive:
            if late:
                _signal(pid, signal.SIGKILL)
            elif pid not in self._asked:
                self._asked.add(pid)
                _signal(pid, signal.SIGTERM)
        return not alive or time.monotonic() >= self._deadline + _KILL_PATIENCE


def _signal(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return
