"""The live page: who may see it, what it shows, and that nothing in it can act in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import asynclock
from asynclock._engine.waiters import Waiter
from asynclock._inspect.views import MANY
from asynclock.contrib.dashboard import app, dashboard
from asynclock.contrib.dashboard.rows import Row
from asynclock.errors import ConfigurationError
from asynclock.testing import LocalServer
from tests.cli.schema import check
from tests.contrib.apps import serving
from tests.contrib.browser import binaries, browse
from tests.contrib.conftest import PATIENT
from tests.waiting import until

TOKEN = "0123456789abcdef-token"
AUTH = {"Authorization": f"Bearer {TOKEN}"}
EVIL = "<script>document.title='owned'</script>"
TRICK = "a\u202egnp.exe\x1b[31m"
TYPED = (
    "document.getElementById('token').value = '%s';document.querySelector('#login button').click()"
)
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def locks(asynclock_nodes: list[LocalServer]) -> AsyncIterator[asynclock.LockManager]:
    urls = [node.url for node in asynclock_nodes]
    async with asynclock.connect(*urls, **PATIENT, label="host:1:<b>label</b>") as locks:
        yield locks


@contextlib.asynccontextmanager
async def client_of(locks: asynclock.LockManager, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(dashboard(locks, token=TOKEN, **more)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client


async def test_what_it_shows(locks: asynclock.LockManager) -> None:
    async with client_of(locks) as client:
        with pytest.raises(asynclock.LeaseLostError):
            async with locks.lock("lost") as lease:
                locks._engine.mark_lost(lease._grant, "on purpose")  # type: ignore[arg-type]
                await asyncio.sleep(60)
        async with locks.lock(EVIL) as lease, locks.semaphore("pool", 2).acquire():
            waiting = asyncio.create_task(_wait(locks, EVIL))
            await until(lambda: bool(locks.waiters()))
            state = (await client.get("/state", headers=AUTH)).json()
            waiting.cancel()
            await asyncio.wait([waiting])
    one, pool = state["locks"]
    assert (one["name"], one["holder"]) == (EVIL, "host:1:<b>label</b>")
    assert (one["ours"], one["agreed"]) == (True, True)
    assert one["fence"] >= lease.fence  # a waiter has had more of them reserved
    assert 0 < one["remaining"] <= 60
    assert pool["name"] == "pool"
    assert (one["waiting"], pool["waiting"]) == (1, 0), "what is waited for comes first"
    assert [(loss["name"], loss["reason"]) for loss in state["losses"]] == [("lost", "on purpose")]
    assert [node["state"] for node in state["nodes"]] == ["up"] * 3


async def test_who_waits_in_other_processes(
    locks: asynclock.LockManager, asynclock_nodes: list[LocalServer]
) -> None:
    urls = [node.url for node in asynclock_nodes]
    there = asynclock.connect(*urls, **PATIENT, label="there:2")
    async with client_of(locks) as client, there, locks.lock("a"):
        waiting = asyncio.create_task(_wait(there, "a"))

        async def shown() -> Any:
            state = (await client.get("/state?lock=a&search=THERE", headers=AUTH)).json()
            check(state, "page")
            return state["locks"] and state

        state = await until(shown, "the waiter is on the page")
        waiting.cancel()
        await asyncio.wait([waiting])
    (one,) = state["locks"]
    assert (one["name"], one["waiting"]) == ("a", 1)
    assert 0 <= one["waited"] <= state["longest"] + 1
    (kind,) = state["lock"]["kinds"]
    (lease,) = kind["leases"]
    assert (lease["holder"], [view["holder"] for view in lease["views"]]) == (
        "host:1:<b>label</b>",
        ["host:1:<b>label</b>"] * 3,
    )
    (place,) = kind["queue"]
    assert (place["label"], place["host"], place["pid"]) == ("there:2", "there", 2)
    assert (place["woken"], place["shared"]) == (False, False)
    assert "ticket" not in place, "with it, anyone could leave the queue for its waiter"


def test_a_long_queue_says_that_more_may_wait() -> None:
    queue = tuple(Waiter(f"{n:032x}:web-{n}:1", woken=False) for n in range(995))
    one = Row("a", "lock", waiting=queue).in_full(())
    few = Row("b", "lock", waiting=queue[:2], here=30).in_full(())
    assert (one["waiting"], one["more"], len(one["queue"])) == (995, True, 200)
    assert (few["waiting"], few["more"], len(few["queue"])) == (30, False, 2)
    assert Row("a", "lock", waiting=queue[:MANY]).as_json(())["more"]
    assert not Row("a", "lock", waiting=queue[: MANY - 1]).as_json(())["more"]


async def _wait(locks: asynclock.LockManager, name: str) -> None:
    async with locks.lock(name):
        pass


@pytest.mark.parametrize("path", ["/state", "/events"])
@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"]
)
async def test_without_the_token_there_is_no_data(
    locks: asynclock.LockManager, path: str, header: str | None
) -> None:
    headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
    async with client_of(locks) as client:
        answer = await client.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "127.0.0.1" not in answer.text


async def test_events_are_pictures(locks: asynclock.LockManager) -> None:
    async with client_of(locks) as client, locks.lock("a\nevent: failed\n\n"):
        async with client.stream("GET", "/events", headers=AUTH) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    break
    assert json.loads(line[6:])["locks"][0]["name"] == "a\nevent: failed\n\n"


async def test_a_closed_manager_has_no_data(locks: asynclock.LockManager) -> None:
    async with client_of(locks) as client:
        await locks.aclose()
        answer = await client.get("/state", headers=AUTH)
        assert (answer.status_code, answer.json()) == (503, {"error": "ConfigurationError"})
        answer = await client.get("/events", headers=AUTH)
        assert answer.text == "event: failed\ndata: ConfigurationError\n\n"


@pytest.mark.parametrize(
    ("client", "local"),
    [(None, True), (("127.0.0.1", 1), True), (("10.0.0.1", 1), False), (("testclient", 1), False)],
)
def test_who_is_on_this_machine(client: tuple[str, int] | None, local: bool) -> None:
    assert app._is_local(client) is local


async def test_it_changes_nothing_and_says_so_to_browsers(locks: asynclock.LockManager) -> None:
    async with client_of(locks) as client:
        for path in ("/", "/state", "/events", "/page.js"):
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                answer = await client.request(method, path, headers=AUTH)
                assert answer.status_code == 405
        for path in ("/", "/page.js", "/page.css", "/state", "/nowhere"):
            answer = await client.get(path, headers=AUTH)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
        page = (await client.get("/")).text
    assert "<script>" not in page
    assert "style=" not in page
    assert " on" not in page.split("<body>")[0]


async def test_other_machines_are_refused(locks: asynclock.LockManager) -> None:
    for public, client, status in (
        (False, ("192.0.2.1", 1), 403),
        (False, ("127.0.0.1", 1), 200),
        (False, ("::1", 1), 200),
        (False, ("example.org", 1), 403),
        (True, ("192.0.2.1", 1), 200),
    ):
        app = dashboard(locks, token=TOKEN, public=public)
        transport = httpx.ASGITransport(app, client=client)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:1") as caller:
            assert (await caller.get("/state", headers=AUTH)).status_code == status


@pytest.mark.parametrize("token", ["", "short", None, "ü" * 20])
def test_there_is_no_page_without_a_good_token(token: Any) -> None:
    with pytest.raises(ConfigurationError, match="token"):
        dashboard(asynclock.connect("redis://localhost"), token=token)


# ---- in a browser --------------------------------------------------------------------------------


@pytest.mark.timeout(240)
async def test_names_cannot_act_in_a_browser(locks: asynclock.LockManager, tmp_path: Path) -> None:
    if binaries() is None:
        pytest.skip("no browser: chromium or chromedriver is not installed")
    app = dashboard(locks, token=TOKEN)
    # One browser for all of it: it takes seconds to start.
    async with serving(app) as url, browse(tmp_path) as page:
        async with locks.lock(EVIL), locks.lock(TRICK), locks.lock("<img src=x onerror=alert(1)>"):
            await page.open(url)

            async def refused() -> bool:
                status = await page.run("return document.getElementById('status').textContent")
                return "not the one" in status

            await page.run(TYPED % "a wrong one, long enough")
            await until(refused, timeout=60)
            await page.run(TYPED % TOKEN)

            async def painted() -> bool:
                return (
                    await page.run("return document.querySelectorAll('#locks tbody tr').length")
                    == 3
                )

            await until(painted, timeout=60)
            html = await page.run("return document.documentElement.outerHTML")
            html = html.replace("<wbr>", "")
            if folder := os.environ.get("ASYNCLOCK_SCREENSHOTS"):
                await page.screenshot(Path(folder) / "dashboard.png")
            await page.open("about:blank")
            await page.open(f"{url}/#token={TOKEN}")
            await until(painted, timeout=60)
        assert await page.run("return document.title") == "asynclock"
        assert await page.run("return document.scripts.length") == 1
        assert await page.run("return location.hash") == ""
        # The policy holds even against a script that got in: no markup from text, no eval.
        blocked = "try { %s; return 'done' } catch (error) { return error.name }"
        assert await page.run(blocked % "document.body.innerHTML = '<b>x</b>'") == "TypeError"
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in html
    assert "<img" not in html
    assert "&lt;b&gt;label&lt;/b&gt;" in html
    assert "a\\u{202e}gnp.exe\\u{1b}[31m" in html
    assert TOKEN not in html


# ---- asynclock serve -----------------------------------------------------------------------------


@pytest.fixture
def served(asynclock_nodes: list[LocalServer]) -> Iterator[subprocess.Popen[str]]:
    nodes = [option for node in asynclock_nodes for option in ("--node", node.url)]
    process = subprocess.Popen(
        [sys.executable, "-m", "asynclock", "serve", "--port", "0", *nodes],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    yield process
    process.kill()
    process.wait(30)
    assert process.stdout
    process.stdout.close()


async def test_serve(served: subprocess.Popen[str]) -> None:
    assert served.stdout
    line = await asyncio.to_thread(served.stdout.readline)
    url, _, token = line.strip().partition("/#token=")
    assert url.startswith("http://127.0.0.1:")
    assert len(token) >= 16
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get("/state")).status_code == 401
        answer = await client.get("/state", headers={"Authorization": f"Bearer {token}"})
        assert len(answer.json()["nodes"]) == 3
        async with client.stream(
            "GET", "/events", headers={"Authorization": f"Bearer {token}"}
        ) as stream:
            await anext(stream.aiter_lines())
            served.send_signal(signal.SIGTERM)
            await asyncio.to_thread(served.wait, 30)


def serve_wrongly(*options: str, before: str = "") -> subprocess.CompletedProcess[str]:
    program = f"{before}\nfrom asynclock.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ASYNCLOCK")}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)


@pytest.mark.timeout(300)
def test_serve_says_what_is_wrong() -> None:
    done = serve_wrongly()
    assert done.returncode == 64
    assert "no nodes" in done.stderr


@pytest.mark.timeout(300)
def test_serve_says_that_the_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = serve_wrongly("--port", port, "--node", "redis://127.0.0.1:1")
    assert done.returncode == 64
    assert f"port {port} can't be used: Address already in use" in done.stderr
    assert "--port 0 takes a free one" in done.stderr


@pytest.mark.timeout(300)
def test_serve_says_which_extra_it_needs() -> None:
    hide = "import sys; sys.modules['uvicorn'] = None"
    done = serve_wrongly("--node", "redis://127.0.0.1:1", before=hide)
    assert done.returncode == 64
    assert "pip install 'asynclock[cli,dashboard]'" in done.stderr
