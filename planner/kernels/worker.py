"""A process that judges one kernel: `python -m sgplan.planner.kernels.worker TASK PARENT < case`.

Ends with its parent, whatever the kernel is doing. Writes the verdict: `right`, or `wrong` and why.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main(task: str) -> None:
    """Judge the case on the standard input."""
    verdict = os.dup(1)
    os.dup2(2, 1)  # what a kernel's file prints is no verdict
    from sgplan.planner.kernels.judge import judged

    text = judged(pickle.load(sys.stdin.buffer), task)
    os.write(verdict, (f"wrong\n{text}" if text else "right").encode())


if __name__ == "__main__":
    _end_with(int(sys.argv[2]))
    main(sys.argv[1])
