"""How a script ended, as its own process finds out at its very end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sgplan.interpreter.exits import UNKNOWN

SCRIPT = """
import atexit, sys
from sgplan.interpreter.exits import Exits
exits = Exits()
exits.install()
atexit.register(lambda: print(f"words: {exits.words()}"))
def main():
    sys.exit(3)
"""
CAUGHT = "try: main()\nexcept SystemExit: pass\n"
ENDS = [
    ("", "", 0),
    ("sys.exit()", "", 0),
    ("sys.exit(0)", "", 0),
    ("main()", "status 3", 3),
    ("exit(5)", "status 5", 5),
    ("sys.exit('no data')", "status 1: no data", 1),
    ("try: main()\nfinally: print('cleaned up')", "status 3", 3),
    (CAUGHT, "", 0),
    (f"{CAUGHT}if True:\n  for n in range(3): n += 1", "", 0),
    ("raise SystemExit(4)", UNKNOWN, 4),
    ("import threading; t = threading.Thread(target=main); t.start(); t.join()", "", 0),
]


@pytest.mark.parametrize("as_module", [False, True], ids=["file", "module"])
@pytest.mark.parametrize(("end", "words", "status"), ENDS, ids=lambda value: repr(value)[:30])
def test_a_script_knows_how_it_ends(
    end: str, words: str, status: int, as_module: bool, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + end + "\n")
    how = ["-m", "script"] if as_module else ["script.py"]
    done = subprocess.run(
        [sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert f"words: {words}\n" in done.stdout
