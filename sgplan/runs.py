"""The runs of this user: those of the working directory, and those begun anywhere on this machine.

Every run leaves a small file in the user's state directory (XDG Base Directory Specification):
where its folder lies and when it began. A convenience, never a condition: where that directory
cannot be read or written there are the runs of the working directory. A home that several hosts
share holds the entries of all; those whose folders cannot be seen from here are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from sgplan.runfolder import PLAN, RUNS, RunFolder

KEPT = 300
"""Runs that are remembered."""


def state_directory() -> Path | None:
    """Where entries lie; None for a user without a home."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(given):  # what is relative is to be ignored, says the specification
        return Path(given) / "sgplan" / "runs"
    home = os.path.expanduser("~")
    return Path(home) / ".local" / "state" / "sgplan" / "runs" if os.path.isabs(home) else None


def remember(folder: RunFolder, began: float) -> None:
    """Enter a run that begins now; a folder that is used again has one entry.

    Args:
        began: seconds since the epoch.
    """
    place = state_directory()
    if place is None:
        return
    path = str(folder.path)
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    entry = {"folder": path, "began": began, "host": socket.gethostname()}
    partial = place / f"{name}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.write_text(json.dumps(entry), encoding="ascii")
        partial.replace(place / f"{name}.json")
        _forget_oldest(place)


def recent() -> list[RunFolder]:
    """All runs that are known of, newest first."""
    began = {run.path: when for run, when in _here()}
    began |= dict(_remembered())
    ordered = sorted(began, key=lambda path: began[path], reverse=True)
    return [RunFolder(path) for path in ordered]


def here() -> list[RunFolder]:
    """The runs below the working directory's `.sgplan/runs`, newest first."""
    return [run for run, _ in sorted(_here(), key=lambda found: found[1], reverse=True)]


def _here() -> list[tuple[RunFolder, float]]:
    found: list[tuple[RunFolder, float]] = []
    for plan in RUNS.glob(f"*/{PLAN}"):
        with contextlib.suppress(OSError):  # deleted while we look
            run = RunFolder(plan.parent.resolve())
            found.append((run, run.began))
    return found


def _remembered() -> list[tuple[Path, float]]:
    """Folders with the times at which their runs began; entries of deleted ones are removed."""
    place = state_directory()
    found: list[tuple[Path, float]] = []
    for file in _entries(place):
        entry = _read(file)
        if entry is None:
            continue
        folder = Path(entry["folder"])
        with contextlib.suppress(OSError):
            if (folder / PLAN).is_file():
                found.append((folder, entry["began"]))
            elif entry["host"] == socket.gethostname() and not folder.exists():
                file.unlink(missing_ok=True)
    return found


def _read(file: Path) -> dict[str, Any] | None:
    """An entry; None when it is none."""
    try:
        entry = json.loads(file.read_bytes())
        fits = os.path.isabs(entry["folder"]) and isinstance(entry["began"], float | int)
        return entry if fits and isinstance(entry["host"], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _entries(place: Path | None) -> list[Path]:
    if place is None:
        return []
    try:
        return [place / name for name in os.listdir(place) if name.endswith(".json")]
    except OSError:
        return []


def _forget_oldest(place: Path) -> None:
    entries = _entries(place)
    if len(entries) > KEPT:
        entries.sort(key=lambda file: file.stat().st_mtime)
        for file in entries[:-KEPT]:
            file.unlink(missing_ok=True)
