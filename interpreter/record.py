"""The event file of one rank: written without slowing a step, read while it grows.

Knows the file (header maps and event arrays in one msgpack stream, see `events.py`), the writer's
thread, and what a reader may believe of a damaged file. Refuses to know what an event means.
Standard library and msgpack only: the screen reads a recorded run without torch.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from sgplan.grammar.diagnostics import Diagnostic, Refused
from sgplan.interpreter import events

PERIOD = 0.2
IDLE_PERIOD = 1.0
LIMIT = 65536
_CHUNK = 16 * 1024 * 1024


def header(rank: int, world: int, mode: str) -> dict[str, Any]:
    """The map that opens an event file, and stands again at every restart of the rank."""
    values = (events.VERSION, rank, world, os.getpid(), socket.gethostname(), mode)
    return dict(zip(events.HEADER_KEYS, values, strict=True))


def _read_late(value: Any) -> Any:
    """Pack what msgpack does not know: a scalar tensor is read here, on the recording thread."""
    item = getattr(value, "item", None)
    if item is None:
        return str(value)
    try:
        return float(item())
    except (RuntimeError, ValueError, TypeError):
        # Not 0-dim, or its memory is gone: the event matters more than this field.
        return None


class Recorder:
    """Appends events to a file from a thread of its own; `emit` never blocks and never fails.

    A forked child inherits the object but not the thread, so it can only fill the queue, and
    `close` in a child does nothing: the file has one writer.
    """

    def __init__(
        self,
        path: Path | str,
        header: Mapping[str, Any],
        *,
        limit: int = LIMIT,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self.on_idle = on_idle
        self._path = Path(path)
        self._queue: deque[tuple[int, type, tuple[Any, ...]]] = deque()
        self._limit = limit
        self._dropped = 0
        self._pid = os.getpid()
        self._packer = msgpack.Packer(default=_read_late, unicode_errors="backslashreplace")
        self._failed = False
        self._stop = threading.Event()
        self._file = self._opened()
        self._write(self._packer.pack(dict(header)))
        self._thread = threading.Thread(target=self._work, name="sgplan-recorder", daemon=True)
        self._thread.start()

    def _opened(self) -> int:
        try:
            _cut_incomplete_tail(self._path)
            return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            self._give_up(error)
            return -1

    def _give_up(self, error: OSError) -> None:
        """A full disk or a deleted folder must not end the training; a reader sees the file end."""
        self._failed = True
        _complain(f"no more events are written to {self._path}: {error.strerror or error}")

    def emit(self, event: type, *fields: Any, _now: Callable[[], int] = time.time_ns) -> None:
        """Queue `event(*fields)`; a 0-dim tensor among the fields is read later, by the thread."""
        queue = self._queue
        if len(queue) < self._limit:
            queue.append((_now(), event, fields))
        else:
            self._dropped += 1

    def close(self, timeout: float = 5.0) -> bool:
        """Write what is queued and end the thread; False when `timeout` was too short."""
        if os.getpid() != self._pid:
            return True
        self._stop.set()
        if threading.current_thread() is self._thread:
            self._drain()
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        next_idle = time.monotonic() + IDLE_PERIOD
        while not self._stop.wait(PERIOD):
            self._drain()
            if time.monotonic() >= next_idle:
                next_idle = time.monotonic() + IDLE_PERIOD
                self._idle()
        self._drain()
        self._limit = 0

    def _idle(self) -> None:
        try:
            if self.on_idle is not None:
                self.on_idle()
        except Exception as error:
            self.on_idle = None
            _complain(f"the recorder's idle task failed and is not called again: {error!r}")

    def _drain(self) -> None:
        batch: list[bytes] = []
        for _ in range(len(self._queue)):
            batch.append(self._pack(*self._queue.popleft()))
        if self._dropped:
            count, self._dropped = self._dropped, 0
            batch.append(self._pack(time.time_ns(), events.EventsDropped, (count,)))
        if batch:
            self._write(b"".join(batch))

    def _pack(self, time_ns: int, event: type, fields: tuple[Any, ...]) -> bytes:
        try:
            return self._packer.pack((events.KIND_OF[event], time_ns, *fields))
        except (KeyError, ValueError, OverflowError) as error:
            self._packer.reset()
            self._dropped += 1
            _complain(f"event {event.__name__} cannot be written: {error!r}")
            return b""

    def _write(self, data: bytes) -> None:
        if self._failed:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self._give_up(error)


def _complain(text: str) -> None:
    print(f"sgplan: {text}", file=sys.stderr, flush=True)


def _cut_incomplete_tail(path: Path) -> None:
    """Cut the record that a killed predecessor left half written, so that ours can be read."""
    if not path.exists():
        return
    tail = Tail(path)
    while tail.read():
        pass
    if tail.damage is None and tail.offset < path.stat().st_size:
        os.truncate(path, tail.offset)


@dataclass(frozen=True, slots=True)
class Record:
    """One event as read back.

    Attributes:
        time_ns: wall-clock nanoseconds of `emit`.
        event: one of the classes of `events.KINDS`.
        attempt: how many headers came before its own: 0 until the rank was restarted.
        end: the byte behind it, where a reader goes on.
    """

    time_ns: int
    event: Any
    attempt: int
    end: int = 0


class Tail:
    """Reads an event file bit by bit while it grows.

    A record that is not complete yet is left for the next `read`. Bytes that are no event stop the
    reader for good and `damage` says why; `verdict` is for when nobody writes any more.

    Args:
        offset, attempt: where to begin: end and attempt of a record that was read before.
    """

    def __init__(self, path: Path | str, offset: int = 0, attempt: int = -1) -> None:
        self.path = Path(path)
        self.offset = offset
        self.damage: str | None = None
        self._attempt = attempt

    def read(self, most: int = _CHUNK) -> list[Record]:
        """The records completed since the last call.

        Args:
            most: bytes to be read, unless that is less than one record.

        Raises:
            Refused: the file was written by another version.
        """
        if self.damage is not None or not self.path.exists():
            return []
        found, more = self._read(most)
        return self._read(_CHUNK)[0] if more and not found and most < _CHUNK else found

    def _read(self, most: int) -> tuple[list[Record], bool]:
        """Records, and whether bytes were left for want of room."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read(most)
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=0)
        unpacker.feed(data)
        start: int = self.offset
        found: list[Record] = []
        try:
            for item in unpacker:
                end = start + unpacker.tell()
                self._take(item, found, end)
                self.offset = end
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            # A TypeError is msgpack's own: damage made a list the key of a map.
            self.damage = str(error) or type(error).__name__
        return found, len(data) == most

    def _take(self, item: Any, found: list[Record], end: int) -> None:
        if isinstance(item, dict):
            _check_header(item, self.path)
            self._attempt += 1
        elif isinstance(item, list) and len(item) >= 2 and self._attempt >= 0:
            found.append(Record(*_decoded(item), self._attempt, end))
        else:
            raise ValueError(f"no event at byte {self.offset}")

    def verdict(self) -> Diagnostic | None:
        """What is wrong with the file, asked when its writer has ended."""
        if self.damage is not None:
            return _damaged(self.path, f"unreadable from byte {self.offset} on: {self.damage}")
        left = self.path.stat().st_size - self.offset if self.path.exists() else 0
        if left > 0:
            return _damaged(self.path, f"its last record is cut off ({left} bytes)")
        return None


def read_events(path: Path | str) -> Iterator[Record]:
    """Every readable record of a file that nobody writes any more.

    Raises:
        Refused: the file was written by another version.
    """
    tail = Tail(path)
    while records := tail.read():
        yield from records


def _decoded(item: list[Any]) -> tuple[int, Any]:
    time_ns, event = events.decode(item)
    if not isinstance(time_ns, int):
        raise ValueError("an event without a time")
    if isinstance(event, events.DiagnosticRaised):
        try:
            Diagnostic.from_wire(event.diagnostic)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("a diagnostic that cannot be read") from error
    return time_ns, event


def _check_header(item: dict[str, Any], path: Path) -> None:
    missing = [key for key in events.HEADER_KEYS if key not in item]
    if missing:
        raise ValueError(f"a header without {', '.join(missing)}")
    if item["sgplan_events"] != events.VERSION:
        raise Refused(
            [
                Diagnostic(
                    "SG1004",
                    f"`{path.name}` has events of version {item['sgplan_events']}, "
                    f"this sgplan reads version {events.VERSION}",
                    notes=(f"the file is {path}",),
                    help="read the run with the sgplan that wrote it",
                )
            ]
        )


def _damaged(path: Path, fact: str) -> Diagnostic:
    return Diagnostic(
        "SG1004",
        f"event log `{path.name}` is damaged: {fact}",
        notes=("what stands before that place was read and is shown",),
        severity="warning",
    )
