"""Whether a kernel may stand for a site: asked of processes of their own, before it is used.

A kernel that reads or writes where it should not can take its process down, and Triton interprets
only in a process that started so; both happen in a worker. Verdicts are kept beside the compile
cache, by a digest of all that was compared.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner.capture.once import SideFile
from sgplan.planner.kernels.source import Kernel

# Raised when the same kernel would be judged in another way.
CHECK_VERSION = 2
PATIENCE = 300.0  # seconds for one worker
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGILL)
_CRASHED = "the kernel took its process down with {what}: it reads or writes outside of its tensors"


@dataclass(frozen=True, slots=True)
class TensorLike:
    """A tensor to be made up."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Case:
    """What a worker compares.

    Attributes:
        kernel: with its reference and backward.
        script: the script's own ops as a function of the tensors, to a tuple of steps.
        tensors: as the site has them; None stands for an optional one that is not given.
        constants: offered by name.
        returns: the step of each value that the kernel returns.
        device: where it is run; on `cpu` it is interpreted.
    """

    kernel: Kernel
    script: fx.GraphModule
    tensors: tuple[TensorLike | None, ...]
    constants: Mapping[str, Any]
    returns: tuple[int, ...]
    device: str

    @property
    def digest(self) -> str:
        parts = (CHECK_VERSION, torch.__version__, self.kernel.digest, str(self.script.graph))
        rest = (self.tensors, sorted(self.constants.items()), self.returns, self.device)
        return hashlib.sha256(str((*parts, *rest)).encode()).hexdigest()


def objection(case: Case, folder: Path) -> str:
    """Why the kernel may not be used; empty when it may.

    Args:
        folder: of verdicts.
    """
    side = SideFile(folder / "kernels", case.digest)
    with side.turn(0):
        known = side.read()
        if known is None:
            verdict = _asked(case)
            if not verdict.lasting:
                return verdict.why
            known = verdict.why
            side.write(known)
        return str(known)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a worker found.

    Attributes:
        why: the kernel may not be used; empty when it may.
        lasting: whether another try would say the same.
    """

    why: str
    lasting: bool = True


def _asked(case: Case) -> Verdict:
    """Compiled for every architecture and compared, at once; the compiler tells slips best."""
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(_worker, ("compile", "compare"), (case, case)))
    wrong = [verdict for verdict in found if verdict.why]
    return next((v for v in wrong if v.lasting), wrong[0]) if wrong else Verdict("")


def _worker(task: str, case: Case) -> Verdict:
    environment = _environment(interpreted=task == "compare" and case.device == "cpu")
    command = [sys.executable, "-m", "sgplan.planner.kernels.worker", task, str(os.getpid())]
    try:
        done = subprocess.run(
            command,
            input=pickle.dumps(case),
            capture_output=True,
            env=environment,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(f"the kernel did not end within {PATIENCE:.0f} s", lasting=False)
    said, _, why = done.stdout.decode(errors="replace").partition("\n")
    if done.returncode == 0 and said in ("right", "wrong"):
        return Verdict(why.strip())
    if -done.returncode in _CRASHES:
        return Verdict(_CRASHED.format(what=f"signal {-done.returncode}"))
    if done.returncode < 0:
        return Verdict(f"the check was ended by signal {-done.returncode}", lasting=False)
    last = done.stderr.decode(errors="replace").strip().splitlines()
    why = last[-1] if last else f"it left with status {done.returncode}"
    return Verdict(f"the check itself failed: {why}", lasting=False)


def _environment(*, interpreted: bool) -> dict[str, str]:
    """Of a worker: nobody attaches to it, and its Triton interprets or does not."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SGPLAN_")}
    kept.pop("TRITON_INTERPRET", None)
    kept |= {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    return kept | ({"TRITON_INTERPRET": "1"} if interpreted else {})


def tensors_like(values: Sequence[torch.Tensor | None], size: Any) -> tuple[TensorLike | None, ...]:
    """Of fake tensors.

    Args:
        size: the number behind a symbolic one.
    """
    return tuple(
        None
        if v is None
        else TensorLike(tuple(map(size, v.shape)), tuple(map(size, v.stride())), v.dtype)
        for v in values
    )
