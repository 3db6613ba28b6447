"""A real browser without a window, driven over the DevTools protocol.

Knows Chromium's command line and protocol, and how to read what an xterm.js terminal shows: by
selecting and copying it, as a person would.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
PATIENCE = 60.0

_COPY = """(() => {
  const data = new DataTransfer();
  document.querySelector(".xterm").dispatchEvent(
    new ClipboardEvent("copy", {clipboardData: data, bubbles: true, cancelable: true}));
  return data.getData("text/plain");
})()"""


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: list[dict[str, Any]] = []
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._events.append(said)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        said = await asyncio.wait_for(answer, PATIENCE)
        assert "error" not in said, said
        return said["result"]

    async def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, promises awaited."""
        done = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def addresses(self) -> list[str]:
        """Everything that the page has asked for."""
        asked = [
            event["params"]["request"]["url"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]
        sockets = [
            event["params"]["url"]
            for event in self._events
            if event["method"] == "Network.webSocketCreated"
        ]
        return asked + sockets

    def complaints(self) -> list[str]:
        """What the browser logged or the page's scripts raised."""
        return [
            str(event["params"])
            for event in self._events
            if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def press(self, key: str) -> None:
        """A key that types a character."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    async def text(self) -> str:
        """What stands in the terminal; Shift makes the drag a selection, not a message to the app.

        Lines end where the text of the line does.
        """
        box = await self.evaluate(
            "(() => { const box = document.querySelector('.xterm-screen')?.getBoundingClientRect();"
            " return box ? [box.left, box.top, box.right, box.bottom] : null })()"
        )
        if box is None:
            return ""
        left, top, right, bottom = box
        for kind, x, y in (
            ("mousePressed", left + 1, top + 1),
            ("mouseMoved", right - 1, bottom - 1),
            ("mouseReleased", right - 1, bottom - 1),
        ):
            await self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=1,
                buttons=1,
                modifiers=8,
            )
        return await self.evaluate(_COPY)

    async def until(self, fact: Callable[[str], object]) -> str:
        """The terminal's text as soon as `fact` is true of it."""
        deadline = time.monotonic() + PATIENCE
        while not fact(shown := await self.text()):
            assert time.monotonic() < deadline, f"it was not shown in time, but:\n{shown}"
            await asyncio.sleep(0.1)
        return shown

    async def picture(self, path: Path) -> None:
        """Save what is seen as a PNG; a click takes the selection off before."""
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=1,
                y=1,
                button="left",
                clickCount=1,
                modifiers=8,
            )
        await asyncio.sleep(0.5)  # a frame without it
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    async def close(self) -> None:
        with contextlib.suppress(AssertionError, ConnectionError):
            await self.call("Page.close")
        self._listening.cancel()
        await self._socket.close()


class Browser:
    """A running browser."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._base = f"http://127.0.0.1:{port}"

    async def open(self, address: str, width: int = 1400, height: int = 800) -> Page:
        async with self._session.put(f"{self._base}/json/new?about:blank") as answer:
            target = await answer.json(content_type=None)
        socket = await self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
        page = Page(socket)
        for domain in ("Page", "Network", "Runtime", "Log"):
            await page.call(f"{domain}.enable")
        await page.resize(width, height)
        await page.call("Page.navigate", url=address)
        return page


@contextlib.asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """A browser with nothing in its profile, and none of its processes left behind."""
    assert PROGRAM is not None
    with (folder / "chromium.log").open("wb") as log:
        running = subprocess.Popen(
            [
                PROGRAM,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--disable-background-networking", "--disable-sync"),
                *("--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}"),
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        async with aiohttp.ClientSession() as session:
            yield Browser(session, await _port(folder / "profile" / "DevToolsActivePort"))
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(10)


async def _port(path: Path) -> int:
    deadline = time.monotonic() + PATIENCE
    while not path.exists() or "\n" not in path.read_text():
        assert time.monotonic() < deadline, "chromium did not start"
        await asyncio.sleep(0.05)
    return int(path.read_text().split()[0])
