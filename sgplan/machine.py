"""What this machine and this Python offer, and what will therefore not work: facts for `doctor`.

Each probe finds out one thing and never raises; judging the facts is `findings`. Knows nothing of a
plan.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from sgplan import __version__

PACKAGES = ("torch", "triton", "lark", "msgpack", "rich", "textual", "numpy", "pymetis")
TESTED_TORCH = "2.13"
_GIB = 1024**3
_SHM_NEEDED = 256 * 1024**2
_TMP_NEEDED = 1 * _GIB
_COMPILE_TIMEOUT = 30.0
_PROGRAM = "#include <omp.h>\nint main() { return omp_get_max_threads() > 0 ? 0 : 1; }\n"

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of `doctor`: `level` is `bad` when something of sgplan cannot work here."""

    name: str
    value: str
    level: Level = "ok"
    why: str = ""


def facts() -> list[Fact]:
    """Every fact, in the order in which they are shown."""
    return [fact for probe in _PROBES for fact in probe()]


def _python() -> list[Fact]:
    system = platform.system()
    why = "" if system == "Linux" else "process supervision needs Linux (prctl, /proc)"
    tested = f"on CPU with gloo and torch {TESTED_TORCH}; not on CUDA, NCCL or another torch"
    return [
        Fact("sgplan", __version__),
        Fact("tested", tested),
        Fact("python", f"{platform.python_version()} at {sys.executable}"),
        Fact("system", f"{system} {platform.machine()}", "ok" if not why else "bad", why),
    ]


def _packages() -> list[Fact]:
    return [_package(name) for name in PACKAGES]


def _package(name: str) -> Fact:
    try:
        return Fact(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        why = {
            "triton": "Triton kernels cannot be compiled; everything else works",
            "pymetis": "`partition { by = metis }` cannot run",
        }.get(name, "sgplan needs it: install sgplan again")
        return Fact(name, "not installed", "warn" if name in ("triton", "pymetis") else "bad", why)


def _cores() -> list[Fact]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [Fact("cores", f"{usable} usable of {os.cpu_count()}")]


def _backends() -> list[Fact]:
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:  # a broken torch fails in many ways, all of them are the answer
        return [Fact("torch import", "fails", "bad", str(error).splitlines()[0])]
    if not dist.is_available():
        return [Fact("distributed", "not built", "bad", "this torch has no torch.distributed")]
    available = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "ucc": dist.is_ucc_available(),
    }
    gloo = available["gloo"]
    why = "" if gloo else "ranks on CPU cannot talk to each other"
    shown = ", ".join(name for name, there in available.items() if there) or "none"
    return [
        Fact("backends", shown, "ok" if gloo else "bad", why),
        Fact("cuda", _cuda(torch.cuda.is_available(), torch.version.cuda), *_untested_cuda()),
        *_torch_tested(torch.__version__),
    ]


def _cuda(available: bool, built: str | None) -> str:
    if built is None:
        return "this torch is built for CPU only"
    return f"built for CUDA {built}, " + ("a device is there" if available else "no device found")


def _untested_cuda() -> tuple[Level, str]:
    return "warn", "untested: sgplan has only been run on CPU"


def _torch_tested(found: str) -> list[Fact]:
    if found.startswith(f"{TESTED_TORCH}."):
        return []
    why = f"untested: sgplan has only been run on torch {TESTED_TORCH}"
    return [Fact("torch version", found, "warn", why)]


def _compiler() -> list[Fact]:
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    lost = "Inductor cannot compile for CPU; write `capture { engine = eager }`"
    if path is None:
        return [Fact("compiler", f"{name} not found", "bad", lost)]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(_PROGRAM)
        binary = str(Path(folder) / "probe")
        try:
            built = _run(path, "-fopenmp", str(source), "-o", binary)
            works = built and _run(binary)
        except (OSError, subprocess.TimeoutExpired):
            works = False
    if not works:
        return [Fact("compiler", f"{path} cannot build an OpenMP program", "bad", lost)]
    return [Fact("compiler", f"{path} builds and runs OpenMP programs")]


def _run(*command: str) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=_COMPILE_TIMEOUT, check=False)
    return done.returncode == 0


def _space() -> list[Fact]:
    return [
        _free("/dev/shm", _SHM_NEEDED, "DataLoader workers and reductions between ranks need it"),
        _free(tempfile.gettempdir(), _TMP_NEEDED, "compilation writes there"),
    ]


def _free(folder: str, needed: int, why: str) -> Fact:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return Fact(folder, "missing", "bad", why)
    level: Level = "ok" if free >= needed else "warn"
    return Fact(folder, f"{free / _GIB:.1f} GiB free", level, "" if level == "ok" else why)


def _caches() -> list[Fact]:
    import getpass

    default = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    inductor = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", default))
    triton = Path(os.environ.get("TRITON_CACHE_DIR", inductor / "triton"))
    return [_cache("inductor cache", inductor), _cache("triton cache", triton)]


def _cache(name: str, folder: Path) -> Fact:
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(nearest, os.W_OK):
        return Fact(name, str(folder), "warn", "not writable: every run compiles again")
    return Fact(name, f"{folder}{'' if folder.exists() else ' (not there yet)'}")


def _injection() -> list[Fact]:
    """Whether a child Python with our PYTHONPATH comes through our hook."""
    from sgplan.launch import environment

    code = "import sys; sys.exit(not hasattr(sys, '_sgplan_chained'))"
    environ = environment(Path(tempfile.gettempdir()), "apply", os.environ)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environ,
            capture_output=True,
            timeout=_COMPILE_TIMEOUT,
            check=False,
        )
        works = done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    if works:
        return [Fact("injection", "a child Python runs the hook")]
    why = "PYTHONPATH does not reach child Pythons: `apply` and `plan` cannot attach"
    return [Fact("injection", "does not work", "bad", why)]


_PROBES: tuple[Callable[[], list[Fact]], ...] = (
    _python,
    _packages,
    _cores,
    _backends,
    _compiler,
    _space,
    _caches,
    _injection,
)
