"""`sgplan top --web`: who is let in, what is sent, and that no app outlives its page."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.gloo import processes

from . import chromium
from .png import pixels

RUN = Path(__file__).parents[1] / "tui" / "runs" / "slow"
SGPLAN = Path(sys.executable).with_name("sgplan")
PATIENCE = 60.0
PATHS = ("/", "/start.js", "/ws", "/static/css/xterm.css", "/static/js/textual.js", "/nothing")


@dataclass(frozen=True)
class Served:
    """A server of ours. `address` is what it printed; its processes carry `mark`."""

    process: subprocess.Popen[str]
    address: str
    mark: str

    @property
    def base(self) -> str:
        return self.address.partition("/?")[0]

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]

    def apps(self) -> list[int]:
        """The processes behind open pages."""
        return [each.pid for each in processes.find(self.mark) if each.pid != self.process.pid]


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [str(SGPLAN), "top", str(RUN), "--web", *options],
        env={**os.environ, processes.MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        # A server that fails closes its output, so this ends at any rate.
        yield Served(process, process.stdout.readline().rpartition(" ")[2].strip(), mark)
    finally:
        processes.end(mark)
        process.wait(10)
        process.stdout.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


async def eventually(fact: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        await asyncio.wait_for(work(), 3 * PATIENCE)

    asyncio.run(in_time())


class Tab:
    """The websocket of a page, without a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.drawn = ""

    async def until(self, word: str) -> None:
        """Read until the app has drawn a word; what was read before is forgotten then."""
        async with asyncio.timeout(PATIENCE):
            while word not in self.drawn:
                message = await self.socket.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, message
                self.drawn += message.data.decode(errors="replace")
        self.drawn = ""

    async def closed(self) -> int | None:
        """Read until the server closes; returns its code."""
        async with asyncio.timeout(PATIENCE):
            async for _ in self.socket:
                pass
        return self.socket.close_code


@asynccontextmanager
async def tab(served: Served, width: int = 150, height: int = 40) -> AsyncIterator[Tab]:
    cookie = {f"sgplan-{urlsplit(served.base).port}": served.token}
    size = f"width={width}&height={height}"
    async with (
        aiohttp.ClientSession(cookies=cookie) as session,
        session.ws_connect(f"{served.base}/ws?{size}", origin=served.base, max_msg_size=0) as made,
    ):
        yield Tab(made)


async def status(address: str, cookie: dict[str, str] | None = None, **headers: str) -> int:
    async with (
        aiohttp.ClientSession(cookies=cookie) as session,
        session.get(address, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status


def refused(*arguments: str) -> str:
    """What a `top` says that does not begin."""
    done = subprocess.run(
        [str(SGPLAN), "top", str(RUN), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sgplan: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


# --- who is let in -------------------------------------------------------------------------------


def test_the_address_is_of_this_machine_and_hands_out_a_cookie(served: Served) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", served.address)

    async def look() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(served.address, allow_redirects=False) as moved:
                assert (moved.status, moved.headers["Location"]) == (303, "./")
                kept = moved.headers["Set-Cookie"]
            assert "HttpOnly" in kept
            assert "SameSite=Lax" in kept
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
            session.get(served.address) as page,
        ):
            assert (page.status, str(page.url)) == (200, f"{served.base}/")
            assert served.token not in await page.text()
            assert "default-src 'self'" in page.headers["Content-Security-Policy"]

    run(look)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_answered_without_the_token(served: Served, path: str) -> None:
    name = f"sgplan-{urlsplit(served.base).port}"
    wrong = served.token[:-1] + ("A" if served.token[-1] != "A" else "B")

    async def look() -> None:
        where = served.base + path
        assert await status(where) == 403
        assert await status(f"{where}?token={wrong}") == 403
        assert await status(f"{where}?token=%ED%A0%80") == 403
        assert await status(where, {name: wrong}) == 403
        assert await status(where, {"sgplan-1": served.token}) == 403
        assert await status(where, {name: served.token}) != 403

    run(look)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("origin", ["http://elsewhere.example", "http://127.0.0.1:1", "null"])
def test_another_page_may_not_ask(served: Served, path: str, origin: str) -> None:
    cookie = {f"sgplan-{urlsplit(served.base).port}": served.token}

    async def look() -> None:
        assert await status(served.base + path, cookie, Origin=origin) == 403
        assert await status(served.base + path, cookie, Origin=served.base) != 403

    run(look)


def test_a_websocket_of_a_stranger_starts_no_app(served: Served) -> None:
    async def look() -> None:
        async with aiohttp.ClientSession() as session:
            for address, origin in (
                (f"{served.base}/ws", served.base),
                (f"{served.base}/ws?token={served.token}", "http://elsewhere.example"),
            ):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                    await session.ws_connect(address, origin=origin)
                assert refusal.value.status == 403
        assert served.apps() == []

    run(look)


# --- pages and their apps ------------------------------------------------------------------------


def test_two_pages_are_two_apps_and_each_ends_with_its_page(served: Served) -> None:
    async def look() -> None:
        async with tab(served) as first:
            await first.until("rank 1 is slow")
            async with tab(served) as second:
                await second.until("rank 1 is slow")
                assert len(served.apps()) == 2
            await eventually(lambda: len(served.apps()) == 1)
            await first.socket.send_json(["stdin", "2"])
            await first.until("reduce.start")
        await eventually(lambda: not served.apps())

    run(look)


def test_a_page_has_the_size_of_its_window(served: Served) -> None:
    async def look() -> None:
        async with tab(served, 60, 20) as page:
            await page.until("rank 1 is slow")
            assert "memory" not in page.drawn
            await page.socket.send_json(["resize", {"width": 150, "height": 40}])
            await page.until("memory")

    run(look)


@pytest.mark.parametrize("size", ["width=0&height=-3", "width=1e9&height=x", "width=99999999"])
def test_no_size_is_too_odd(served: Served, size: str) -> None:
    async def look() -> None:
        cookie = {f"sgplan-{urlsplit(served.base).port}": served.token}
        async with (
            aiohttp.ClientSession(cookies=cookie) as session,
            session.ws_connect(f"{served.base}/ws?{size}", max_msg_size=0) as made,
        ):
            page = Tab(made)
            await page.until("\x1b[?1049h")
            await page.socket.send_json(["resize", {"width": 100, "height": 30}])
            await page.until("overview")

    run(look)


def test_leaving_the_dashboard_closes_the_page(served: Served) -> None:
    async def look() -> None:
        async with tab(served) as page:
            await page.until("overview")
            await page.socket.send_json(["stdin", "q"])
            await page.closed()
            await eventually(lambda: not served.apps())

    run(look)


def test_an_app_that_crashes_closes_its_page(served: Served) -> None:
    async def look() -> None:
        async with tab(served) as page:
            await page.until("overview")
            (app,) = served.apps()
            os.kill(app, signal.SIGKILL)
            await page.closed()

    run(look)


def test_an_app_that_does_not_end_is_killed(served: Served) -> None:
    async def look() -> None:
        async with tab(served) as page:
            await page.until("overview")
            (app,) = served.apps()
            os.kill(app, signal.SIGSTOP)
        await eventually(lambda: not served.apps())

    run(look)


def test_a_page_that_is_closed_at_once_leaves_no_app(served: Served) -> None:
    async def look() -> None:
        for _ in range(3):
            async with tab(served):
                pass
        await eventually(lambda: not served.apps())

    run(look)


@pytest.mark.parametrize("said", ["{", "null", '["stdin", 3]', '["resize", {"width": "x"}]', "[]"])
def test_a_page_that_talks_nonsense_is_closed(served: Served, said: str) -> None:
    async def look() -> None:
        async with tab(served) as page:
            await page.socket.send_str(said)
            assert await page.closed() == aiohttp.WSCloseCode.POLICY_VIOLATION
        await eventually(lambda: not served.apps())

    run(look)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_end_of_the_server_is_the_end_of_open_pages(signum: signal.Signals) -> None:
    async def look(served: Served) -> None:
        async with tab(served) as one, tab(served) as other:
            await one.until("overview")
            await other.until("overview")
            (first, _) = served.apps()
            os.kill(first, signal.SIGSTOP)
            served.process.send_signal(signum)
            assert await one.closed() == aiohttp.WSCloseCode.GOING_AWAY
            await eventually(lambda: served.process.poll() is not None)
        assert served.process.returncode == 0
        assert processes.settle(served.mark, 0) == []

    with serving() as served:
        run(lambda: look(served))


def test_a_killed_server_leaves_no_app() -> None:
    async def look(served: Served) -> None:
        async with tab(served) as page:
            await page.until("overview")
            served.process.kill()
            await eventually(lambda: not processes.find(served.mark))

    with serving() as served:
        run(lambda: look(served))


# --- where it listens ----------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--web", "--port", str(port))
    assert f"port {port} of `127.0.0.1` cannot be listened on: Address already in use" in said
    assert "without `--port` sgplan takes one that is free" in said


def test_a_port_of_choice_can_be_had_again_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        with serving("--port", str(port)) as served:
            assert served.base == f"http://127.0.0.1:{port}"


def test_an_address_for_others_is_said_to_be_one() -> None:
    with serving("--host", "0.0.0.0") as served:
        assert served.base.startswith(f"http://{socket.gethostname()}:")
        assert served.process.stdout is not None
        assert "others can reach it" in served.process.stdout.readline()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--web", "--host", "203.0.113.9"), "name an address of this machine"),
        (("--web", "--host", "no such host"), "is no address of this machine"),
        (("--web", "--port", "65536"), "ports are 1 to 65535"),
        (("--port", "0"), "belong to `--web`"),
        (("--host", "127.0.0.1"), "belong to `--web`"),
        ((), "needs a terminal"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)


def test_without_textual_serve_the_cure_is_named() -> None:
    code = (
        "import sys\nsys.modules['textual_serve'] = None\n"
        f"from sgplan.cli import main\nsys.exit(main(['top', {str(RUN)!r}, '--web']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "sgplan: error: `--web` needs textual_serve, which is not installed: "
        "`pip install 'textual-serve>=1.1.3,<2'` (the extra `web` of sgplan)\n"
    )


# --- in a browser --------------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(
    chromium.PROGRAM is None, reason="no chromium or google-chrome on PATH"
)


@needs_chromium
def test_a_browser_draws_the_dashboard(served: Served, tmp_path: Path) -> None:
    async def look() -> None:
        async with chromium.browser(tmp_path) as browser:
            page = await browser.open(served.address)
            shown = await page.until(lambda text: "rank 1 is slow" in text)
            assert "the others wait for it" in shown
            await page.picture(tmp_path / "overview.png")
            colours = Counter(pixels(tmp_path / "overview.png"))
            # The bars, and the line of the chosen rank over the whole width.
            assert sum(n for (r, g, b), n in colours.items() if b > 70 and b > 2 * r) > 30_000
            assert sum(n for colour, n in colours.items() if min(colour) > 200) > 5_000

            await page.press("2")
            await page.until(lambda text: "reduce.start" in text)
            await page.picture(tmp_path / "program.png")

            other = await browser.open(served.address, 700, 400)
            await other.until(lambda text: "rank 1 is slow" in text)
            assert len(served.apps()) == 2
            await other.close()
            await eventually(lambda: len(served.apps()) == 1)

            await page.press("q")
            closed = "getComputedStyle(document.getElementById('closed')).display"
            deadline = time.monotonic() + PATIENCE
            while await page.evaluate(closed) != "flex":
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            assert await page.evaluate("document.cookie + location.href") == f"{served.base}/"
            assert {urlsplit(each).netloc for each in page.addresses()} == {
                urlsplit(served.base).netloc
            }
            assert not [each for each in page.complaints() if "software WebGL" not in each]

    run(look)


@needs_chromium
def test_a_window_that_shrinks_and_grows_is_redrawn(served: Served, tmp_path: Path) -> None:
    async def look() -> None:
        async with chromium.browser(tmp_path) as browser:
            page = await browser.open(served.address, 500, 300)
            await page.until(lambda text: "rank 1 is slow" in text and "memory" not in text)
            await page.resize(1400, 800)
            await page.until(lambda text: "memory" in text)
            await page.picture(tmp_path / "grown.png")

    run(look)
