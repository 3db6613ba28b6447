"""What every test may use: text files that record what the user sees.

A golden file is compared, never silently rewritten: `--update-golden` writes it, and its diff is
read like code.
"""

from __future__ import annotations

import difflib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

Golden = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with the file that records it, or write the file under --update-golden."""
    return _write if request.config.getoption("--update-golden") else _compare


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _compare(path: Path, text: str) -> None:
    if not path.exists():
        pytest.fail(f"{path} is missing; --update-golden writes it")
    recorded = path.read_text(encoding="utf-8")
    if recorded != text:
        lines = difflib.unified_diff(
            recorded.splitlines(), text.splitlines(), "recorded", "now", lineterm=""
        )
        pytest.fail(f"{path.name} differs:\n" + "\n".join(lines), pytrace=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    _have_own_state(session.config)
    _have_signals()


def _have_own_state(config: pytest.Config) -> None:
    """No test leaves a run among those of the user, and none sees them."""
    state = tempfile.mkdtemp(prefix="sgplan-tests-state-")
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    os.environ["XDG_STATE_HOME"] = state


def _have_signals() -> None:
    """Jobs get signals as at a terminal, also when the tests run under `nohup` or behind `&`.

    Both start a process with signals ignored, and its children inherit that; they do not inherit a
    handler.
    """
    for signum in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, _go_on)


def _go_on(signum: int, frame: object) -> None:
    """What ignoring a signal does."""
