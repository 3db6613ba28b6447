"""The dashboard in a browser: who may see it, and what is sent.

The address that is printed holds a token; opening it hands out a cookie, and nothing is answered
without one of the two. Nothing of the page comes from another machine. Knows requests and
addresses; what stands behind an open page is `pages.py`.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from sgplan.failure import Failure
from sgplan.pages import STATIC, Pages

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PATIENCE = 10.0  # seconds for pages to end; each of them kills its app before
_HEADERS = {
    # The browser itself refuses what is not ours. xterm.js writes style elements.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_PAGE = """<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>sgplan top</title>
    <link rel="icon" href="data:,">
    <link rel="stylesheet" href="static/css/xterm.css">
    <style>
      @font-face {
        font-family: "Roboto Mono"; font-weight: 100 700;
        src: url("static/fonts/RobotoMono-VariableFont_wght.ttf");
      }
      @font-face {
        font-family: "Roboto Mono"; font-weight: 100 700; font-style: italic;
        src: url("static/fonts/RobotoMono-Italic-VariableFont_wght.ttf");
      }
      html, body { margin: 0; height: 100%; overflow: hidden; background: #121212; }
      #terminal { height: 100%; }
      .xterm-viewport { scrollbar-width: none; }
      .note {
        position: absolute; inset: 0; z-index: 10; display: flex; gap: 1ch; align-items: center;
        justify-content: center; font: 16px "Roboto Mono", monospace; color: #e0e0e0;
        background: #121212;
      }
      .note a { color: #8ab4f8; }
      body.-first-byte #opening, body.-closed #opening, body:not(.-closed) #closed {
        display: none;
      }
    </style>
    <script src="static/js/textual.js"></script>
    <script src="start.js"></script>
  </head>
  <body>
    <div class="note" id="opening">opening the dashboard …</div>
    <div class="note" id="closed">The dashboard is closed. <a href="">Open it again</a></div>
    <div id="terminal" class="textual-terminal" data-font-size="16"></div>
  </body>
</html>
"""
# textual.js begins on `onload` with the address in the element's data; cells are measured then,
# so the fonts have to be there before. Keys go to the app without a click, once it listens.
_START = """
const begin = window.onload;
window.onload = async () => {
  const address = new URL("ws", location.href);
  address.protocol = address.protocol.replace("http", "ws");
  document.getElementById("terminal").dataset.sessionWebsocketUrl = address;
  await Promise.allSettled(["", "bold ", "italic "].map(
    style => document.fonts.load(style + "16px 'Roboto Mono'")));
  begin();
  new MutationObserver((_, watch) => {
    if (document.body.classList.contains("-first-byte")) {
      watch.disconnect();
      document.querySelector(".xterm-helper-textarea").focus();
    }
  }).observe(document.body, {attributes: true});
};
"""


class Site:
    """Requests of those who know the token, answered for one run.

    Args:
        port: that is listened on; a browser keeps one cookie a host, whatever the port.
    """

    def __init__(self, pages: Pages, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self._cookie = f"sgplan-{port}"
        self._pages = pages

    def application(self) -> web.Application:
        made = web.Application(middlewares=[self._admit])
        made.add_routes(
            [
                web.get("/", self._index),
                web.get("/start.js", self._start),
                web.get("/ws", self._pages.open),
                web.static("/static", STATIC),
            ]
        )
        made.on_shutdown.append(self._shut_down)
        return made

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = (request.query.get("token", ""), request.cookies.get(self._cookie, ""))
        if not any(self._is_token(each) for each in given):
            return _refusal("Open the address that sgplan printed, with its token.")
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            return _refusal("Another page may not ask for this.")
        return await handler(request)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    async def _index(self, request: web.Request) -> web.Response:
        if "token" in request.query:  # which then stays in no history and in no address bar
            moved = web.Response(status=303, headers={**_HEADERS, "Location": "./"})
            moved.set_cookie(self._cookie, self.token, httponly=True, samesite="Lax")
            return moved
        return web.Response(text=_PAGE, content_type="text/html", headers=_HEADERS)

    async def _start(self, request: web.Request) -> web.Response:
        return web.Response(text=_START, content_type="text/javascript", headers=_HEADERS)

    async def _shut_down(self, _: web.Application) -> None:
        await self._pages.close()


def _refusal(text: str) -> web.Response:
    return web.Response(status=403, text=f"{text}\n", headers=_HEADERS)


def serve(folder: Path, host: str, port: int) -> None:
    """Serve the dashboard of a run until Ctrl-C.

    Args:
        host: name or address of this machine to listen on.
        port: 0 takes any that is free.

    Raises:
        Failure: nothing can listen there.
    """
    asyncio.run(_serve(folder, _listen(host, port), host))


async def _serve(folder: Path, listening: socket.socket, host: str) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, ended.set)
    address, port = listening.getsockname()[:2]
    site = Site(Pages(folder), port)
    # No access log: requests hold the token.
    runner = web.AppRunner(site.application(), access_log=None, shutdown_timeout=_PATIENCE)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        print(f"sgplan: the dashboard is at {_url(host, address, port)}/?token={site.token}")
        if not ipaddress.ip_address(address).is_loopback:
            print("sgplan: others can reach it, and nothing on the way is encrypted")
        print("sgplan: Ctrl-C ends it", flush=True)
        await ended.wait()
    finally:
        await runner.cleanup()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Failure(f"`{host}` is no address of this machine: {error.strerror}") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
    except OSError as error:
        made.close()
        raise Failure(
            f"port {port} of `{host}` cannot be listened on: {error.strerror}; "
            "without `--port` sgplan takes one that is free"
            if port
            else f"nothing can listen on `{host}`: {error.strerror}; "
            "name an address of this machine"
        ) from error
    return made


def _url(host: str, address: str, port: int) -> str:
    if ipaddress.ip_address(address).is_unspecified:  # every address of this machine: name one
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
