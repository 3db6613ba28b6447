"""What the dashboard costs, and how fast it answers.

    python bench/dashboard.py                # every part, about four minutes
    python bench/dashboard.py live start     # some of them
    python bench/dashboard.py --seconds 6    # does it run at all

`sgplan top` runs in a process and a terminal of its own; keys are written into that terminal, and
what it draws is read from it. Exit status 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from beside import step_time_ratio
from gated import BIN, HERE
from terminal import Screen, Terminal, Took

MIB = 1 << 20
CORE, RESIDENT, KEY, FIRST, BACK, EVEN = 0.10, 120 * MIB, 0.1, 0.5, 0.5, 0.01
RANKS, MANY = 64, 512
SIZE = (120, 36)
TABS = {
    b"2": "instruction",
    b"3": "where, or the rule for it",
    b"4": "to declare it, or why",
    b"5": "computes in",
    b"6": "kind",
    b"1": "waits for",
}
"""The key of a screen, and what stands in the head of its table and nowhere else."""

UP, DOWN, LEFT, PAGE_DOWN, HOME, END = (
    *(b"\x1b[A", b"\x1b[B", b"\x1b[D"),
    *(b"\x1b[6~", b"\x1b[H", b"\x1b[F"),
)
RECORDS_A_STEP = 1.2  # of one rank of `watched.py` at 10 steps a second
TWO_HOURS = 72_000  # steps


class Row(NamedTuple):
    """A bar: `ok`, `FAIL`, or `open` where a busy machine does not let it be told."""

    outcome: Literal["ok", "FAIL", "open"]
    bar: str
    measured: str


def judged(holds: bool, bar: str, measured: str) -> Row:
    return Row("ok" if holds else "FAIL", bar, measured)


def within(bar: float, what: str, took: Sequence[Took]) -> Row:
    """All are answered in time; `open` when the program itself worked less than that."""
    worst, busiest = max(each.seconds for each in took), max(each.busy for each in took)
    outcome = "ok" if worst <= bar else "open" if busiest <= bar else "FAIL"
    text = f"{_ms([each.seconds for each in took])}; on a processor {_ms([b for _, b in took])}"
    return Row(outcome, f"{what} under {1e3 * bar:.0f} ms", text)


def _ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * median(seconds):.0f} ms, at most {1e3 * max(seconds):.0f}"


def top(folder: Path, size: tuple[int, int] = SIZE) -> Terminal:
    return Terminal([str(BIN / "sgplan"), "top", str(folder)], folder.parent, size)


def shows(*texts: str) -> Callable[[Screen], bool]:
    return lambda screen: all(any(text in line for line in screen.lines) for text in texts)


def chosen(screen: Screen) -> int | None:
    """The rank under the cursor: its line has a background that no other line of ranks has."""
    found: dict[bytes, list[str]] = {}
    for line, cells in zip(screen.lines, screen.cells, strict=True):
        if line[:4].strip().isdigit() and line[4] == " ":
            background = cells[0].style.rpartition(b"48;")[2]
            found.setdefault(background, []).append(line[:4])
    alone = [ranks[0] for ranks in found.values() if len(ranks) == 1]
    return int(alone[0]) if len(found) > 1 and alone else None


def on(rank: int) -> Callable[[Screen], bool]:
    return lambda screen: chosen(screen) == rank


@contextmanager
def written(folder: Path, ranks: int) -> Iterator[None]:
    """A run that goes on meanwhile."""
    command = [sys.executable, str(HERE / "watched.py"), str(folder), "--ranks", str(ranks)]
    with subprocess.Popen(command) as writer:
        try:
            time.sleep(3.0)
            yield
        finally:
            writer.terminate()


def record(folder: Path, *options: str) -> None:
    """A run that has ended."""
    subprocess.run([sys.executable, str(HERE / "watched.py"), str(folder), *options], check=True)


# --- parts ---------------------------------------------------------------------------------------


def live(work: Path, seconds: float) -> Iterator[Row]:
    """64 ranks at 10 steps a second: processor, memory, keys."""
    folder = work / "live"
    with written(folder, RANKS), top(folder) as terminal:
        terminal.wait(shows(f"{RANKS} of {RANKS} ranks", "● trains"))
        terminal.watch(4.0)
        began, shares = terminal.resident(), [_share(terminal, seconds / 3) for _ in range(3)]
        ended = terminal.resident()
        spread = ", ".join(f"{share:.1%}" for share in sorted(shares))
        others: list[str] = []
        for key, text in TABS.items():
            terminal.press(key, shows(text))
            terminal.watch(1.0)
            others.append(f"{text.split()[0]} {_share(terminal, seconds / 6):.1%}")
        tabs = [terminal.press(key, shows(text)) for _ in range(3) for key, text in TABS.items()]
        keys = _moves(terminal, RANKS, 5)
        resident = terminal.resident()
    yield judged(min(shares) <= CORE, f"at most {CORE:.0%} of a core, overview", spread)
    print(f"  head of the screen's table and its share of a core: {'; '.join(others)}")
    grown = f"{(ended - began) / MIB:+.1f} in {seconds:.0f} s"
    size = f"{resident / MIB:.0f} MiB ({grown})"
    yield judged(resident <= RESIDENT, f"at most {RESIDENT // MIB} MiB resident", size)
    yield within(KEY, f"{len(keys)} moves", keys)
    yield within(KEY, f"{len(tabs)} screens", tabs)


def _share(terminal: Terminal, seconds: float) -> float:
    """Of one core, over some seconds."""
    cpu, began = terminal.cpu(), time.monotonic()
    terminal.watch(seconds)
    return (terminal.cpu() - cpu) / (time.monotonic() - began)


def _moves(terminal: Terminal, ranks: int, times: int) -> list[Took]:
    """Keys that move the cursor through the ranks."""
    took = [terminal.press(END, on(ranks - 1)), terminal.press(HOME, on(0))]
    took += [terminal.press(DOWN, on(rank + 1)) for rank in range(times)]
    page = SIZE[1] - 9  # at least one line more than a page of the table holds
    for _ in range(times):
        before = chosen(terminal.screen) or 0
        if before + page >= ranks:
            break
        took.append(terminal.press(PAGE_DOWN, lambda screen: (chosen(screen) or 0) > before))  # noqa: B023
    took.append(terminal.press(END, on(ranks - 1)))
    took.append(terminal.press(UP, on(ranks - 2)))
    return took


def many(work: Path, seconds: float) -> Iterator[Row]:
    """512 ranks that ended with long errors, every column on the screen: keys."""
    folder = work / "many"
    record(folder, "--ranks", str(MANY), "--steps", "3", "--fails", "--misses", "0.5")
    with top(folder, (160, 50)) as terminal:
        terminal.wait(shows("step 3 ", "failed", "q quit"))
        terminal.watch(1.0)
        keys = _moves(terminal, MANY, 10)
        tabs = [terminal.press(key, shows(text)) for _ in range(3) for key, text in TABS.items()]
        share = _share(terminal, 5.0)
    yield within(KEY, f"{MANY} ranks, {len(keys)} moves", keys)
    yield within(KEY, f"{MANY} ranks, {len(tabs)} screens", tabs)
    print(f"  {MANY} ranks that stand still: {share:.1%} of a core")


def start(work: Path, seconds: float) -> Iterator[Row]:
    """A recorded run: from the start of the process to its first whole frame."""
    folder = work / "started"
    record(folder, "--ranks", "4", "--steps", "100")
    took: list[Took] = []
    textual: list[float] = []
    for _ in range(6):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import textual.app, textual.widgets"], check=True)
        textual.append(time.monotonic() - began)
        with top(folder) as terminal:
            terminal.wait(shows("4 of 4 ranks", "waits for", "q quit"))
            took.append(terminal.age)
    yield within(FIRST, "first frame, best of six,", [min(took)])
    for name, found in (("first frame", [s for s, _ in took]), ("Textual's import", textual)):
        print(f"  {name}: {', '.join(f'{each:.2f}' for each in sorted(found))} s")


def long(work: Path, seconds: float, steps: int = TWO_HOURS // 10) -> Iterator[Row]:
    """A tenth of two hours of 64 ranks, recorded: opened, and gone back in."""
    folder = work / "long"
    record(folder, "--ranks", str(RANKS), "--steps", str(steps))
    records = round(steps * RANKS * RECORDS_A_STEP)
    with top(folder) as terminal:
        terminal.wait(shows(f"{RANKS} of {RANKS} ranks"))
        first = terminal.age
        keys = [terminal.press(key, shows(text)) for _ in range(2) for key, text in TABS.items()]
        keys += _moves(terminal, RANKS, 5)
        still = shows("still reading")(terminal.screen)
        terminal.wait(lambda screen: not shows("still reading")(screen), 600.0)
        opened = time.monotonic() - terminal.began
        back = list(_backwards(terminal))
        resident = terminal.resident()
    factor = TWO_HOURS / steps
    print(f"  {records} records in {opened:.1f} s, {records / opened:,.0f} in a second")
    print(f"  two hours ({factor * records:,.0f} records) at that rate: {factor * opened:.0f} s")
    yield within(2 * FIRST, "first frame", [first])
    yield judged(still, "keys were pressed while it was read", "yes" if still else "no")
    yield within(BACK, f"{len(keys)} keys while it is read", keys)
    yield within(BACK, f"{len(back)} ways back", back)
    size = f"{resident / MIB:.0f} MiB"
    yield judged(resident <= RESIDENT, f"at most {RESIDENT // MIB} MiB resident", size)


def _backwards(terminal: Terminal) -> Iterator[Took]:
    """Steps and marks back, and of clicks on the slider."""
    width, height = SIZE
    places = range(20, width - 30, 9)
    clicks = [f"\x1b[<0;{x};{height - 1}M\x1b[<0;{x};{height - 1}m".encode() for x in places]
    for keys in (LEFT, LEFT, LEFT, b"p", b"p", b"p", *clicks, LEFT, LEFT, b"p"):
        before = terminal.screen.lines[height - 2]
        yield terminal.press(keys, lambda screen: screen.lines[height - 2] != before)  # noqa: B023
        terminal.settle()


def training(work: Path, seconds: float) -> Iterator[Row]:
    """A training of one rank, with the dashboard running and standing still in turn."""
    pairs = round(4 * seconds)
    ratio, steps = step_time_ratio(work / "training", top, pairs, 0.6)
    print(f"  {steps} steps in {pairs} pairs of 0.6 s with it and 0.6 s without")
    low, high = 1 - EVEN, 1 + EVEN
    apart = ratio.low > high or ratio.high < low
    outcome = "ok" if low <= ratio.low <= ratio.high <= high else "FAIL" if apart else "open"
    yield Row(outcome, f"step time with it over without it 1.00 +- {EVEN}", str(ratio))


PARTS: dict[str, Callable[[Path, float], Iterator[Row]]] = {
    "live": live,
    "many": many,
    "start": start,
    "long": long,
    "training": training,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=30.0, help="that a share is taken over")
    args = parser.parse_args()
    for name in args.parts:
        if name not in PARTS:
            parser.error(f"there is no part `{name}`; there are {', '.join(PARTS)}")
    held = True
    with tempfile.TemporaryDirectory() as folder:
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
        for name in args.parts or PARTS:
            for outcome, bar, measured in PARTS[name](Path(folder), args.seconds):
                print(f"| {outcome} | {name}: {bar} | {measured} |", flush=True)
                held = held and outcome != "FAIL"
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
