"""A small world for the injected hook: stand-ins for `torch` and `sgplan.attach` that load at once.

The hook's promises are about when it acts, in which process, and what it leaves alone; real torch
takes a second to load and would hide a millisecond of ours. `test_jobs.py` has real torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import sgplan

INJECT = Path(sgplan.__file__).parent / "inject"
ATTACH = """
import json, os, sys
from sgplan.rank import claim
def torch_loaded(torch):
    claim(os.environ, os.getpid())
    with open(os.environ["SANDBOX_LOG"], "a") as log:
        log.write(json.dumps({"pid": os.getpid(), "torch": torch.__name__}) + "\\n")
"""


@dataclass(frozen=True)
class Sandbox:
    """A folder that is on PYTHONPATH behind the hook's own."""

    path: Path
    run: Path

    def write(self, name: str, text: str) -> Path:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def environ(self, **extra: str) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SGPLAN_", "COV"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            clean.pop(name, None)
        return {
            **clean,
            "PYTHONPATH": os.pathsep.join([str(INJECT), str(self.path)]),
            "SGPLAN_RUN": str(self.run),
            "SANDBOX_LOG": str(self.run / "attached"),
            **extra,
        }

    def python(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environ(**extra),
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def attached(self) -> list[int]:
        """Pids of the processes in which `sgplan.attach` was called, in order."""
        log = self.run / "attached"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line)["pid"] for line in lines]


def make(path: Path) -> Sandbox:
    """A sandbox with the stand-ins in place; `sgplan/rank.py` in it is the real one."""
    sandbox = Sandbox(path / "site", path / "run")
    sandbox.path.mkdir()
    sandbox.run.mkdir()
    sandbox.write("torch/__init__.py", "loaded = True\n")
    sandbox.write("sgplan/__init__.py", "")
    sandbox.write("sgplan/attach.py", ATTACH)
    sandbox.write("sgplan/rank.py", (INJECT.parent / "rank.py").read_text())
    return sandbox
