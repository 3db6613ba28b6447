"""The folder of a run: what lies in it under which name, and who may write there first.

The folder is the truth about a run; every screen can be made from it again. Knows names and encoded
files; the content of plans, programs and events belongs to their own modules.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgpack

from sgplan.failure import Failure

if TYPE_CHECKING:
    from sgplan.grammar.plan import PlanFile

RUNS = Path(".sgplan") / "runs"
PLAN = "plan.msgpack"
"""What every run folder holds from its beginning."""

_TAKEN = ("plan.sgplan", PLAN, "run.sgpx", "report.json")


@dataclass(frozen=True, slots=True)
class AttachFailure:
    """What the hook left: which Python, what went wrong (`cannot import sgplan`), and why."""

    python: str
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder; make one with `create`, find an earlier one with `find`."""

    path: Path

    @property
    def artefact(self) -> Path:
        return self.path / "run.sgpx"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def shown(self) -> str:
        """The path as a person would type it."""
        return shown(self.path)

    @property
    def began(self) -> float:
        """When the plan was written into it, in seconds since the epoch.

        Raises:
            OSError: the folder is gone.
        """
        return (self.path / PLAN).stat().st_mtime

    def identity(self) -> tuple[int, int] | None:
        """Which folder lies there now, None when none does or its plan was deleted."""
        try:
            found = self.path.stat()
            return (found.st_dev, found.st_ino) if (self.path / PLAN).exists() else None
        except OSError:
            return None

    def write_plan(self, plan: PlanFile, expect: dict[str, Any] | None) -> None:
        """The plan for people (`plan.sgplan`, `--set` beside it) and for the ranks."""
        (self.path / "plan.sgplan").write_text(plan.text, encoding="utf-8")
        if plan.sets_text:
            (self.path / "plan.set").write_text(plan.sets_text, encoding="utf-8")
        data = cast(bytes, msgpack.packb({"plan": plan.to_wire(), "expect": expect}))
        (self.path / PLAN).write_bytes(data)

    def write_task(self, task: dict[str, Any]) -> None:
        """What `verify` wants of the ranks."""
        (self.path / "verify.msgpack").write_bytes(cast(bytes, msgpack.packb(task)))

    def read_plan(self) -> PlanFile:
        """The plan the ranks ran under.

        Raises:
            Failure: the file is missing or unreadable.
        """
        from sgplan.grammar.plan import PlanFile  # the dashboard reads a run without it

        path = self.path / PLAN
        try:
            return PlanFile.from_wire(msgpack.unpackb(path.read_bytes())["plan"])
        except OSError as error:
            raise Failure(f"{path} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise Failure(f"{path} is damaged, or of another version: {error}") from error

    def parts(self) -> dict[int, Path]:
        """The program parts that ranks have written, by rank."""
        found: dict[int, Path] = {}
        for name in os.listdir(self.path) if self.path.is_dir() else ():
            rank = name.removeprefix("program-").removesuffix(".msgpack")
            if rank.isdigit() and name == f"program-{rank}.msgpack":
                found[int(rank)] = self.path / name
        return dict(sorted(found.items()))

    def was_attached(self) -> bool:
        """Whether the hook handed over in any process, trained there or not."""
        return any(self.path.glob("attached-*.txt"))

    def attach_failures(self) -> list[AttachFailure]:
        """Interpreters in which the hook could not attach, each distinct one once."""
        found: dict[AttachFailure, None] = {}
        for path in sorted(self.path.glob("attach-failed-*.txt")):
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n", 2)
            python, what, reason = [*lines, "", ""][:3]
            found[AttachFailure(python, what, reason.strip())] = None
        return list(found)

    def write_report(self, report: dict[str, Any]) -> None:
        """Write `report.json`, whole or not at all."""
        temporary = self.path / "report.json.tmp"
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.path / "report.json")

    def read_report(self) -> dict[str, Any] | None:
        """The report, or None when the run has not ended or was killed."""
        path = self.path / "report.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Failure(f"{path} cannot be read: {error}") from error


def create(wanted: str | None, name: str) -> RunFolder:
    """Make the folder of a new run: `wanted`, or one named after the time and the plan.

    Raises:
        Failure: the folder holds another run, or cannot be made.
    """
    try:
        path = Path(wanted) if wanted is not None else _fresh(name)
        path.mkdir(parents=True, exist_ok=True)
        taken = [entry.name for entry in path.iterdir() if _belongs_to_a_run(entry.name)]
        if taken:
            raise Failure(f"{path} already holds a run ({min(taken)}): name another --run-dir")
        (path / "log").mkdir(exist_ok=True)
    except OSError as error:
        raise Failure(f"the run folder cannot be made: {error}") from error
    return RunFolder(path.resolve())


def find(name: str) -> RunFolder:
    """An earlier run by its folder, or by its name below `.sgplan/runs`.

    Raises:
        Failure: there is none.
    """
    for path in (Path(name), RUNS / name):
        if (path / PLAN).is_file():
            return RunFolder(path.resolve())
    raise Failure(f"`{name}` is neither a run folder nor a .sgpx file")


def shown(path: Path) -> str:
    """A path as a person would type it: from the working directory when below it, or from `~`."""
    here, home = Path.cwd(), Path(os.path.expanduser("~"))
    if path.is_relative_to(here):
        return str(path.relative_to(here))
    if len(home.parts) > 1 and path.is_relative_to(home):  # a service's home may be `/`
        return str("~" / path.relative_to(home))
    return str(path)


def _fresh(name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    RUNS.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        path = RUNS / (f"{stamp}-{name}" if attempt == 1 else f"{stamp}-{name}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise Failure(f"no free name for a run at {stamp} below {RUNS}")


def _belongs_to_a_run(name: str) -> bool:
    return name in _TAKEN or name.startswith(("events-", "program-", "counter-", "attach"))
