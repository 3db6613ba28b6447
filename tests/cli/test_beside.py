"""`sgplan apply --tui` on a real terminal: the run does not depend on the dashboard before it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gloo import processes

SGPLAN = Path(sys.executable).with_name("sgplan")
SCRIPT = Path(__file__).parent / "scripts" / "alone.py"
SIZE = (30, 120)
PATIENCE = 60.0
MAIN_SCREEN = "\x1b[?1049l"
_ESCAPES = re.compile(r"\x1b(\[[0-9;?<>=$]*[a-zA-Z]|\][^\x07]*\x07|[=>PX_^][^\x1b]*(\x1b\\)?)")


class Terminal:
    """A command on a terminal of its own, which is its controlling one."""

    def __init__(self, folder: Path, arguments: list[str], environ: dict[str, str], reads: bool):
        self.mark = uuid.uuid4().hex
        self.raw = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", *SIZE, 0, 0))
        self.process = subprocess.Popen(
            [str(SGPLAN), *arguments],
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", processes.MARK: self.mark, **environ},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        if reads:
            self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # hung up, from either side
                return
            self.raw += data.decode(errors="replace")

    @property
    def text(self) -> str:
        """All that was printed, without what moves and colours."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    @property
    def told(self) -> str:
        """What was printed when the dashboard had gone."""
        return _ESCAPES.sub("", self.raw.rpartition(MAIN_SCREEN)[2]).replace("\r", "")

    def until(self, word: str) -> None:
        self.wait(lambda: word in self.text, word)

    def wait(self, fact: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not fact():
            assert time.monotonic() < deadline, f"no {what} in time:\n{self.text[-3000:]}"
            time.sleep(0.05)

    def resize(self, lines: int, columns: int) -> None:
        """As a window manager does; the dashboard's process gets SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self._master)
        self._master = -1

    def end(self) -> int:
        """The exit status, when all was read."""
        status = self.process.wait(PATIENCE)
        self._reader.join(5)
        return status

    def orphans(self) -> list[processes.Process]:
        return processes.settle(self.mark, 3)

    def close(self) -> None:
        processes.end(self.mark)
        self.process.wait(10)
        if self._master >= 0:
            self.hang_up()


@contextmanager
def terminal(
    folder: Path, *arguments: str, reads: bool = True, **environ: str
) -> Iterator[Terminal]:
    made = Terminal(folder, list(arguments), environ, reads)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def training(
    folder: Path, *options: str, steps: int = 30, pause: float = 0.1, **settings: Any
) -> Iterator[Terminal]:
    """The script under an empty plan, in the run folder `run`, with the dashboard before it."""
    (folder / "p.sgplan").write_text("sgplan 1\n")
    arguments = ("apply", "--tui", "--run-dir", "run", *options, "p.sgplan", "--")
    command = (sys.executable, str(SCRIPT))
    settings = {"STEPS": str(steps), "PAUSE": str(pause), **settings}
    with terminal(folder, *arguments, *command, **settings) as made:
        yield made


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "report.json").read_text())


def children(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def has_report(folder: Path) -> bool:
    return (folder / "run" / "report.json").exists()


# --- the run goes on -----------------------------------------------------------------------------


@pytest.mark.gloo
def test_leaving_the_dashboard_leaves_the_run_alone(tmp_path: Path) -> None:
    with training(tmp_path, STATUS="7") as shown:
        shown.until("● trains")
        shown.press("q")
        shown.until("the run goes on; `sgplan top run` shows it, Ctrl-C ends it")
        assert not has_report(tmp_path)
        assert shown.end() == 7
        assert not shown.orphans()
    told = shown.told
    assert "the command ended with status 7 after 30 steps under the plan" in told
    assert "log/stderr.log:\nthe script's last words\n" in told
    assert "printed by the script" not in shown.text
    assert (tmp_path / "run" / "log" / "stdout.log").read_text() == "printed by the script\n"
    assert (report(tmp_path)["steps"], report(tmp_path)["child_exit_status"]) == (30, 7)


@pytest.mark.gloo
def test_a_window_that_shrinks_and_grows_disturbs_nobody(tmp_path: Path) -> None:
    """B127."""
    with training(tmp_path) as shown:
        shown.until("● trains")
        shown.resize(5, 20)
        seen = len(shown.text)
        shown.wait(lambda: len(shown.text) > seen, "a small screen")
        shown.resize(*SIZE)
        seen = len(shown.text)
        shown.wait(lambda: "1 overview  2 program" in shown.text[seen:], "the large screen")
        shown.press("q")
        assert shown.end() == 0
        assert not shown.orphans()
    assert report(tmp_path)["steps"] == 30


@pytest.mark.gloo
@pytest.mark.slow
def test_the_end_of_the_run_stays_on_the_screen(tmp_path: Path) -> None:
    with training(tmp_path, steps=10) as shown:
        shown.until("■ ended")
        shown.wait(lambda: has_report(tmp_path), "report")
        shown.wait(lambda: len(processes.find(shown.mark)) == 1, "end of the run")
        assert shown.process.poll() is None
        shown.press("q")
        assert shown.end() == 0
    left = shown.text.rpartition("done after")
    assert "10, median" in left[2]
    assert "the run goes on" not in shown.text
    assert MAIN_SCREEN in shown.raw


@pytest.mark.gloo
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGHUP])
def test_a_dashboard_that_is_killed_leaves_the_run_alone(
    tmp_path: Path, signum: signal.Signals
) -> None:
    with training(tmp_path) as shown:
        shown.until("● trains")
        shown.process.send_signal(signum)
        assert shown.end() == -signum
        assert not has_report(tmp_path)
        shown.wait(lambda: has_report(tmp_path), "report")
        assert not shown.orphans()
    assert (report(tmp_path)["outcome"], report(tmp_path)["steps"]) == ("done", 30)
    assert "done after" in (tmp_path / "run" / "log" / "sgplan.log").read_text()


@pytest.mark.gloo
@pytest.mark.slow
def test_a_window_that_is_closed_leaves_the_run_alone(tmp_path: Path) -> None:
    with training(tmp_path) as shown:
        shown.until("● trains")
        shown.hang_up()
        shown.process.wait(PATIENCE)
        shown.wait(lambda: has_report(tmp_path), "report")
        assert not shown.orphans()
    assert (report(tmp_path)["outcome"], report(tmp_path)["steps"]) == ("done", 30)


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True], ids=["unread", "stopped"])
def test_a_dashboard_that_does_not_draw_holds_nothing_up(tmp_path: Path, stopped: bool) -> None:
    with training(tmp_path, reads=stopped) as shown:
        shown.wait(lambda: (tmp_path / "run" / "events-0.msgpack").exists(), "rank")
        if stopped:
            shown.process.send_signal(signal.SIGSTOP)
        shown.wait(lambda: has_report(tmp_path), "report")
    assert (report(tmp_path)["outcome"], report(tmp_path)["steps"]) == ("done", 30)


# --- the run is ended ----------------------------------------------------------------------------


@pytest.mark.gloo
def test_an_interrupt_after_the_dashboard_reaches_the_run(tmp_path: Path) -> None:
    with training(tmp_path, steps=9000) as shown:
        shown.until("● trains")
        shown.press("q")
        shown.until("Ctrl-C ends it")
        shown.press("\x03")
        assert shown.end() == 130
        assert not shown.orphans()
    assert "was ended by SIGINT after" in shown.text
    assert "KeyboardInterrupt" in shown.text
    assert report(tmp_path)["child_exit_status"] == 130


@pytest.mark.gloo
@pytest.mark.slow
def test_a_second_interrupt_kills_who_ignores_the_first(tmp_path: Path) -> None:
    with training(tmp_path, steps=9000, STUBBORN="1") as shown:
        shown.until("● trains")
        shown.press("q")
        shown.until("Ctrl-C ends it")
        shown.press("\x03")
        time.sleep(0.5)
        assert shown.process.poll() is None
        shown.press("\x03")
        assert shown.end() == 130
        assert not shown.orphans()
    assert report(tmp_path)["outcome"] == "killed"


@pytest.mark.gloo
def test_sigterm_ends_the_run_and_gives_the_terminal_back(tmp_path: Path) -> None:
    with training(tmp_path, steps=9000) as shown:
        shown.until("● trains")
        shown.process.terminate()
        assert shown.end() == 143
        assert not shown.orphans()
    assert MAIN_SCREEN in shown.raw
    assert "was ended by SIGTERM after" in shown.text


@pytest.mark.gloo
@pytest.mark.slow
def test_a_run_that_is_killed_is_told_and_leaves_nobody(tmp_path: Path) -> None:
    with training(tmp_path, steps=9000) as shown:
        shown.until("● trains")
        (run,) = children(shown.process.pid)
        os.kill(run, signal.SIGKILL)
        shown.wait(lambda: len(processes.find(shown.mark)) == 1, "end of the run")
        shown.press("q")
        assert shown.end() == 137
        assert not shown.orphans()
    assert "the run's own process was ended by SIGKILL" in shown.told


@pytest.mark.gloo
@pytest.mark.slow
def test_an_interrupt_before_the_dashboard_ends_the_run(tmp_path: Path) -> None:
    with training(tmp_path, steps=9000) as shown:
        shown.wait(lambda: (tmp_path / "run" / "log").exists(), "run folder")
        shown.process.send_signal(signal.SIGINT)
        shown.wait(lambda: len(processes.find(shown.mark)) < 2, "end of the run")
        if shown.process.poll() is None:
            shown.press("q")
        assert shown.end() != 0
        assert not shown.orphans()


# --- options, and what is refused ----------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("bad.sgplan", "--", "true"),
        ("missing.sgplan", "--", "true"),
        ("good.sgplan", "--", "no-such-program"),
        ("good.sgplan", "--"),
        ("--set", "sync.bucket=25", "good.sgplan", "--", "true"),
        ("--run-dir", "taken", "good.sgplan", "--", "true"),
        ("--quiet", "good.sgplan", "--", "false"),
    ],
)
def test_a_refusal_is_that_of_apply_without_the_dashboard(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "bad.sgplan").write_text("sgplan 1\nmesh { data = rest }\nsync { bucket = 25 }\n")
    (tmp_path / "good.sgplan").write_text("sgplan 1\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "report.json").write_text("{}")
    with terminal(tmp_path, "apply", *arguments) as plain:
        status = plain.end()
    before = sorted(tmp_path.rglob("*"))
    with terminal(tmp_path, "apply", "--tui", *arguments) as shown:
        if "--quiet" in arguments:
            shown.until("1-6 screens")
            shown.press("q")
        assert shown.end() == status != 0
    if "--quiet" not in arguments:
        assert shown.raw == plain.raw
        assert sorted(tmp_path.rglob("*")) == before
    assert plain.text.partition(" (")[0] in shown.text


@pytest.mark.gloo
@pytest.mark.slow
def test_what_a_rank_refuses_is_told_after_the_dashboard(tmp_path: Path) -> None:
    with training(tmp_path, "--set", "mesh.data=3") as shown:
        shown.until("1-6 screens")
        shown.press("q")
        assert shown.end() == 1
    assert "error[SG0301]: the mesh has 3 ranks, but the world has 1 rank" in shown.text
    assert "sgplan: refused" in shown.told
    assert (tmp_path / "run" / "plan.set").read_text() == "mesh.data=3"


@pytest.mark.gloo
@pytest.mark.slow
def test_quiet_says_nothing_of_a_run_that_went_well(tmp_path: Path) -> None:
    with training(tmp_path, "--quiet", steps=5) as shown:
        shown.until("■ ended")
        shown.wait(lambda: has_report(tmp_path), "report")
        shown.wait(lambda: len(processes.find(shown.mark)) == 1, "end of the run")
        shown.press("q")
        assert shown.end() == 0
    assert shown.told.strip() == ""


@pytest.mark.parametrize(
    ("descriptor", "name"), [("stdin", "input"), ("stdout", "output"), ("stderr", "error")]
)
def test_without_a_terminal_it_is_refused(tmp_path: Path, descriptor: str, name: str) -> None:
    (tmp_path / "p.sgplan").write_text("sgplan 1\n")
    master, slave = pty.openpty()
    elsewhere = (tmp_path / "elsewhere").open("w+b")
    said = (tmp_path / "said").open("w+b")
    streams: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave}
    # A terminal's words would have to be read from it: those of the others go to a file.
    streams[descriptor] = said if descriptor == "stderr" else elsewhere
    done = subprocess.run(
        [str(SGPLAN), "apply", "--tui", "p.sgplan", "--", "true"],
        cwd=tmp_path,
        timeout=PATIENCE,
        check=False,
        **streams,
    )
    text = (tmp_path / "said").read_bytes() if descriptor == "stderr" else os.read(master, 1000)
    for each in (elsewhere, said):
        each.close()
    for each in (master, slave):
        os.close(each)
    assert done.returncode == 1
    assert text.decode().strip() == (
        f"sgplan: error: the dashboard needs a terminal, and the standard {name} is none"
    )
    assert not (tmp_path / ".sgplan").exists()
