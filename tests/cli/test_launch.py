"""The parent of a job: bytes, signals, exit status, and that no process outlives it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("job_driver.py")
MARK = "SGPLAN_TEST_LAUNCH"

STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
ASKS_TO_DIE = (
    "import sys, time\nfrom sgplan.process import die_with_parent\n"
    "die_with_parent()\nprint('up', flush=True)\ntime.sleep(600)\n"
)


class Jobs:
    """Starts jobs whose processes carry a mark, and finds who is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **options: object) -> subprocess.Popen[str]:
        log = str(self.folder / f"run{len(self.started)}" / "log")
        child = subprocess.Popen(
            [sys.executable, str(DRIVER), log, *command],
            env={**os.environ, MARK: self.mark},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},  # pyright: ignore
        )
        self.started.append(child)
        return child

    def run(self, *command: str) -> tuple[int, str, str]:
        child = self.start(*command)
        out, err = child.communicate(timeout=60)
        return child.returncode, out, err

    def alive(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    for pid in made.alive():
        os.kill(pid, signal.SIGKILL)
    for child in made.started:
        child.communicate()


def until(fact: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def test_bytes_go_to_their_own_stream_and_to_the_log(jobs: Jobs) -> None:
    status, out, err = jobs.run("sh", "-c", r"printf 'a\tb\r\n'; printf 'half' >&2; exit 7")
    assert (status, out, err) == (7, "a\tb\n", "half")  # text mode reads \r\n as \n
    log = jobs.folder / "run0" / "log"
    assert (log / "stdout.log").read_bytes() == b"a\tb\r\n"
    assert (log / "stderr.log").read_bytes() == b"half"


def test_large_output_arrives_whole(jobs: Jobs) -> None:
    _, out, _ = jobs.run(sys.executable, "-c", "print('x' * 3_000_000)")
    assert len(out) == 3_000_001


def test_a_child_ended_by_a_signal_gives_the_shells_status(jobs: Jobs) -> None:
    assert jobs.run("sh", "-c", "kill -9 $$")[0] == 137


def test_a_terminal_is_handed_on_as_a_terminal(jobs: Jobs) -> None:
    master, slave = pty.openpty()
    code = "import sys; print(sys.stdout.isatty(), sys.stderr.isatty()); print('done')"
    child = jobs.start(sys.executable, "-c", code, stdout=slave)
    os.close(slave)
    child.wait(30)
    # Our own terminal turns \n into \r\n once, not twice.
    assert os.read(master, 1000) == b"True False\r\ndone\r\n"
    os.close(master)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_child(jobs: Jobs, signum: signal.Signals) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(signum)}, lambda *_: sys.exit(5))\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    child = jobs.start(sys.executable, "-c", code)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    child.send_signal(signum)
    assert child.wait(10) == 5


def test_a_second_interrupt_kills_the_whole_tree(jobs: Jobs) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    child = jobs.start(sys.executable, "-c", code)
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert child.poll() is None
    started = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 130
    assert time.monotonic() - started < 3
    assert jobs.alive() == []


def test_an_ignored_signal_stays_ignored(jobs: Jobs) -> None:
    child = jobs.start(
        "sh", "-c", "echo up; sleep 1; echo done",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGHUP)
    assert child.communicate(timeout=10)[0] == "done\n"
    assert child.returncode == 0


def test_who_is_left_after_the_child_is_ended(jobs: Jobs) -> None:
    started = time.monotonic()
    status, out, _ = jobs.run("sh", "-c", "setsid sleep 600 & echo out; exit 3")
    assert (status, out) == (3, "out\n")
    assert time.monotonic() - started < 5
    assert jobs.alive() == []


def test_who_ignores_sigterm_is_killed_after_the_grace(jobs: Jobs) -> None:
    started = time.monotonic()
    command = f"setsid {sys.executable} -c '{STUBBORN}' & sleep 0.5; exit 1"
    assert jobs.run("sh", "-c", command)[0] == 1
    assert 4 < time.monotonic() - started < 15
    assert jobs.alive() == []


def test_the_last_words_of_the_ended_are_forwarded(jobs: Jobs) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit()))\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    command = f'{sys.executable} -c "$0" & sleep 1; exit 0'
    assert jobs.run("sh", "-c", command, code)[1] == "up\nbye\n"


def test_sigkill_of_the_parent_ends_the_child(jobs: Jobs) -> None:
    child = jobs.start("sleep", "600")
    until(lambda: len(jobs.alive()) == 2)
    child.kill()
    until(lambda: not jobs.alive())


@pytest.mark.parametrize("asked", [False, True])
def test_sigkill_of_the_parent_ends_a_child_that_runs_nothing_yet(jobs: Jobs, asked: bool) -> None:
    """Between its birth and its program a child has the parent's handlers of signals."""
    born = jobs.folder / "born"
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom sgplan import process\n"
        "ask, asked, born, driver = process.die_with_parent, *sys.argv[1:4]\n"
        "def slowly(*given):\n"
        "    asked == 'True' and ask(*given)\n"
        "    Path(born).touch()\n"
        "    for _ in range(20):\n        time.sleep(0.1)\n"
        "    asked == 'True' or ask(*given)\n"
        "process.die_with_parent = slowly\n"
        "sys.argv = sys.argv[3:]\nexec(Path(driver).read_text())\n"
    )
    log = str(jobs.folder / "run" / "log")
    command = [sys.executable, "-c", code, str(asked), str(born), str(DRIVER), log, "sleep", "600"]
    child = subprocess.Popen(command, env={**os.environ, MARK: jobs.mark})
    until(born.exists)
    child.kill()
    child.wait(10)
    until(lambda: not jobs.alive())


def test_sigkill_of_the_launcher_ends_who_asked_to_die_with_it(jobs: Jobs) -> None:
    launcher = f'{sys.executable} -c "$0" & {sys.executable} -c "$0" & wait'
    child = jobs.start("sh", "-c", launcher, ASKS_TO_DIE)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.readline()
    (sh,) = children(child.pid)
    os.kill(sh, signal.SIGKILL)
    assert child.wait(10) == 137
    assert jobs.alive() == []


def test_sigkill_of_parent_and_launcher_at_once_leaves_nobody(jobs: Jobs) -> None:
    child = jobs.start("sh", "-c", f'{sys.executable} -c "$0" & wait', ASKS_TO_DIE)
    assert child.stdout is not None
    child.stdout.readline()
    (sh,) = children(child.pid)
    child.kill()
    os.kill(sh, signal.SIGKILL)
    until(lambda: not jobs.alive())


def test_who_comes_too_late_to_ask_dies_at_once() -> None:
    code = (
        "import os\nfrom sgplan.process import die_with_parent\n"
        "die_with_parent(parent=os.getppid() + 1)\nprint('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")
