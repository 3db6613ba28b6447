"""Open pages of `top --web`: each has an app process of its own, which ends with it.

The one place that knows textual-serve: its `AppService` speaks to the app, and `textual.js` in the
browser speaks JSON lists of a kind and its value to us.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import textual_serve
from aiohttp import WSCloseCode, WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

STATIC = Path(textual_serve.__file__).parent / "static"

_HEARTBEAT = 15.0  # seconds; a browser that does not answer in half of it has gone
_CLOSE = 2.0  # seconds for a browser to answer that we close
_GRACE = 3.0  # seconds for an app to end before it is killed
_CELLS = 1000  # no terminal is wider or higher


class Pages:
    """The pages of one run that are open now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: set[web.WebSocketResponse] = set()

    async def open(self, request: web.Request) -> web.WebSocketResponse:
        """A page's websocket, until the page or its app has ended."""
        browser = web.WebSocketResponse(heartbeat=_HEARTBEAT, timeout=_CLOSE)
        await browser.prepare(request)
        app = _App(self._folder, browser)
        self._open.add(browser)
        try:
            await app.start(*_cells(request.query))
            gone = asyncio.create_task(_close_with(app.process, browser))
            try:
                await _listen(browser, app)
            finally:
                gone.cancel()
                await app.end()
        finally:
            self._open.discard(browser)
        return browser

    async def close(self) -> None:
        """Close all of them; their apps end then."""
        await asyncio.gather(
            *(browser.close(code=WSCloseCode.GOING_AWAY) for browser in self._open)
        )


class _App(AppService):
    """The app of one page. textual-serve would start it in a shell, and in our process group."""

    def __init__(self, folder: Path, browser: web.WebSocketResponse) -> None:
        super().__init__(
            "",
            write_bytes=browser.send_bytes,
            write_str=browser.send_str,
            close=browser.close,  # pyright: ignore[reportArgumentType]: what it returns is dropped
            download_manager=DownloadManager(),
        )
        self._folder = folder

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        # `-P`: a file of the working directory must not stand in for a module.
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "sgplan.served", str(os.getpid()), str(self._folder)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self._build_environment(width, height),
            start_new_session=True,
        )
        self._stdin = process.stdin
        return process

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    async def end(self) -> None:
        """Ask the app to end, then make it; returns when its process has gone."""
        leaving = asyncio.create_task(self._leave())
        # Not by a cancellation: what textual-serve awaits swallows it.
        done, _ = await asyncio.wait([leaving], timeout=_GRACE)
        if not done:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await leaving

    async def _leave(self) -> None:
        await self.stop()
        # Its last bytes are read to nowhere: on a full pipe it could not end.
        await self.process.communicate()


async def _close_with(process: Process, browser: web.WebSocketResponse) -> None:
    """An app that has crashed does not say that it ends."""
    await process.wait()
    await browser.close()


async def _listen(browser: web.WebSocketResponse, app: _App) -> None:
    """Pass on what the browser sends, until it goes."""
    async for message in browser:
        if message.type is not WSMsgType.TEXT:
            continue
        match _decoded(message.data):
            case ["stdin", str(text)]:
                await app.send_bytes(text.encode(errors="replace"))
            case ["resize", {"width": int(), "height": int()} as size]:
                await app.set_terminal_size(*_cells(size))
            case ["ping", value]:
                await browser.send_json(["pong", value])
            case ["focus"] | ["blur"]:  # `served.py` says why it is all the same
                pass
            case _:
                await browser.close(code=WSCloseCode.POLICY_VIOLATION)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _cells(size: Any) -> tuple[int, int]:
    """Width and height in cells, of a request's query or a message."""
    return _within(size.get("width"), 80), _within(size.get("height"), 24)


def _within(value: Any, default: int) -> int:
    try:
        return max(1, min(_CELLS, int(value)))
    except (TypeError, ValueError):
        return default
