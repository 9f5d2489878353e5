"""A server that stops: requests that wait for a lock are answered, and holders have their time.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse

from asynclock import AsyncLockError, Lease, LockManager, connect
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib.fastapi import Locked, Locks, locked
from asynclock.testing import LocalServer, busy
from asynclock.testing.servers.process import ReservedPort
from tests.contrib.apps import client_of, serving, with_locks
from tests.contrib.conftest import lock_keys
from tests.docs.blocks import ROOT, python_blocks
from tests.engine.kinds import kinds
from tests.waiting import PATIENCE, becomes, go_through, until

PAGE = ROOT / "docs" / "deploy.md"
APP = "tests.contrib.stopping_apps"
WORKER = ("-k", "worker.Worker", "--graceful-timeout", "60")
LIMIT = ("--timeout-graceful-shutdown", "1")
SERVERS: dict[str, tuple[str, ...]] = {
    "uvicorn": ("uvicorn", f"{APP}:app", "--port", "PORT"),
    "uvicorn-workers": ("uvicorn", f"{APP}:app", "--port", "PORT", "--workers", "1"),
    "gunicorn": ("gunicorn", f"{APP}:app", *WORKER, "-b", "127.0.0.1:PORT"),
    "aiohttp": (APP, "PORT"),
    "uvicorn, impatient": ("uvicorn", f"{APP}:app", "--port", "PORT", *LIMIT),
    "aiohttp, impatient": (APP, "PORT", "1"),
}


@contextlib.contextmanager
def server(which: str, nodes: list[LocalServer], go: Path) -> Iterator[tuple[str, Any]]:
    """A server in a process of its own: its address, and the process."""
    if which == "gunicorn" and importlib.util.find_spec("gunicorn") is None:
        pytest.skip("gunicorn is not installed")
    environment = {
        **os.environ,
        "NODES": ",".join(node.url for node in nodes),
        "GO": str(go),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{go.parent}",
    }
    with ReservedPort() as port:
        words = [one.replace("PORT", str(port)) for one in SERVERS[which]]
        process = subprocess.Popen([sys.executable, "-m", *words], env=environment, cwd=go.parent)
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()
            process.wait()


@pytest.mark.timeout(180)  # a server that imports a framework, on a busy machine
@pytest.mark.parametrize("which", SERVERS)
async def test_sigterm_ends_the_waits_and_lets_holders_finish(
    which: str, asynclock_nodes: list[LocalServer], tmp_path: Path
) -> None:
    """Or, with little patience, ends them: in any case their locks are free."""
    go = tmp_path / "go"
    test = f"::{test_sigterm_ends_the_waits_and_lets_holders_finish.__name__}"
    (worker,) = [one for one in python_blocks(PAGE) if one.shown_by and one.shown_by.endswith(test)]
    (tmp_path / "worker.py").write_text(worker.text)
    with server(which, asynclock_nodes, go) as (url, process):
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:

            async def waiting() -> int | None:
                with contextlib.suppress(httpx.TransportError):
                    return int((await client.get("/waiting")).text)
                assert process.poll() is None
                return None

            await becomes(waiting, 0, timeout=60)
            holder = asyncio.create_task(client.post("/hold"))
            await until(lambda: lock_keys(asynclock_nodes))
            paths = ("/hold", "/by-hand", "/by-hand")
            others = [asyncio.create_task(client.post(path)) for path in paths]
            await becomes(waiting, 3)
            process.send_signal(signal.SIGTERM)
            for answer in await asyncio.wait_for(asyncio.gather(*others), PATIENCE):
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["type"] == "urn:asynclock:unavailable"
                assert answer.json()["lock"] == "a"
            if "impatient" in which:
                await asyncio.wait([holder])
            else:
                assert not holder.done()
                go.touch()
                assert (await holder).json() == {"held": True}
        await asyncio.to_thread(process.wait, PATIENCE)
    assert not await lock_keys(asynclock_nodes)


class Server:
    """What handles the signals of this process, as the object of a uvicorn server does."""

    should_exit = False

    def handle_exit(self, *_: Any) -> None:
        self.should_exit = True


@pytest.fixture
def stopping() -> Iterator[Server]:
    one = Server()
    before = signal.signal(signal.SIGINT, one.handle_exit)
    yield one
    found = signal.signal(signal.SIGINT, before)
    assert found == one.handle_exit, "nobody has taken the signal away"


def application() -> FastAPI:
    # The same manager is opened at each start.
    app: FastAPI = with_locks("fastapi", connect("memory://stopping"))

    @app.get("/{name}")
    @locked("{name}")
    async def get(name: str) -> str:
        return name

    @app.websocket("/socket")
    async def socket(socket: WebSocket, lease: Annotated[Lease, Locked("socket")]) -> None:
        await socket.accept()

    return app


async def test_a_later_request_gets_a_free_lock_and_does_not_wait(stopping: Server) -> None:
    """And an application that starts again, as in tests, begins anew."""
    app = application()
    async with client_of(app) as (client, locks), busy("a", locks):
        waiting = asyncio.create_task(client.get("/a"))
        await until(lambda: locks.statistics().waiting)
        stopping.handle_exit()
        assert (await waiting).status_code == 503
        assert (await client.get("/a")).status_code == 503
        assert (await client.get("/b")).json() == "b"
    stopping.should_exit = False
    async with client_of(app) as (client, locks), busy("a", locks) as other:
        assert (await client.get("/b")).json() == "b"
        for flag in (False, True, False):  # without requests nobody looks at it, 10 times a second
            stopping.should_exit = flag
            await asyncio.sleep(0.3)
        waiting = asyncio.create_task(client.get("/a"))
        await until(lambda: locks.statistics().waiting)
        await other.release()
        assert (await waiting).json() == "a"


WISHES = kinds("strict", "one of two")


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("kind", WISHES)
async def test_a_lock_that_a_handler_takes_itself_is_waited_for_until_the_stop(
    stopping: Server, kind: str, *, here: bool
) -> None:
    """Work of the same manager outside of requests waits on, even if a request has begun it."""
    app: FastAPI = with_locks("fastapi", connect("memory://stopping-by-hand"))
    wish, jobs, answered = WISHES[kind], list[asyncio.Task[int]](), asyncio.Event()

    async def job(locks: LockManager) -> int:
        async with wish(locks) as lease:
            return int(lease.fence)

    async def later(locks: LockManager) -> int:
        await answered.wait()
        return await job(locks)

    said: list[str] = []

    @app.get("/")
    async def get(locks: Locks) -> int:
        try:
            return await job(locks)
        except AsyncLockError as error:
            said.append(str(error))
            raise

    @app.get("/job")
    async def begin(locks: Locks) -> None:
        jobs.append(asyncio.create_task((later if stopping.should_exit else job)(locks)))

    async with client_of(app) as (client, locks), connect("memory://stopping-by-hand") as other:

        async def ask(path: str = "/") -> httpx.Response:
            request = asyncio.create_task(client.get(path))  # another task than a lease's here
            return await asyncio.wait_for(request, PATIENCE)

        holder = locks if here else other
        taken = holder.rwlock("a").write() if kind == "read" else wish(holder)
        held = await taken.acquire()
        waiting = asyncio.create_task(ask())
        await until(lambda: locks.statistics().waiting == 1)
        jobs.append(asyncio.create_task(job(locks)))
        assert (await ask("/job")).status_code == 200
        await until(lambda: locks.statistics().waiting == 3)
        stopping.handle_exit()
        answer = await waiting
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["type"] == "urn:asynclock:unavailable"
        assert "the timeout was 0 s" not in said[0]
        assert (await ask("/job")).status_code == 200
        answered.set()
        await until(lambda: locks.statistics().waiting == 3)
        assert (await ask()).status_code == 503
        assert not any(one.done() for one in jobs)
        await held.release()
        assert all(await asyncio.wait_for(asyncio.gather(*jobs), PATIENCE))
        assert (await ask()).json() > 0, "it takes what is free"
        async with taken:
            assert (await asyncio.create_task(ask())).status_code == 503


def test_a_socket_that_waits_is_refused(stopping: Server) -> None:
    stopping.handle_exit()
    app = application()
    with TestClient(app) as client, contextlib.ExitStack() as stack:
        assert client.portal is not None
        locks = app.state.asynclock
        stack.enter_context(client.portal.wrap_async_context_manager(busy("socket", locks)))
        with pytest.raises(WebSocketDenialResponse) as caught:
            stack.enter_context(client.websocket_connect("/socket"))
        assert caught.value.status_code == 503


# ---- routes without a timeout --------------------------------------------------------------------
async def test_routes_without_timeout_cause_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    api, inner = with_locks("fastapi"), FastAPI()
    api.get("/{name}/patient")(locked("{name}")(nothing))
    api.get("/{name}/quick")(locked("{name}", timeout=2)(nothing))
    api.get("/{name}/free")(nothing)
    inner.get("/{name}/inner")(locked("{name}", timeout=None)(nothing))
    api.mount("/mounted", inner)
    with TestClient(api):
        pass
    assert warned(caplog) == [("/{name}/patient", "/{name}/inner")]

    caplog.clear()
    site = with_locks("aiohttp")
    site.router.add_get("/{name}/patient", for_aiohttp.locked("{name}")(handle))
    site.router.add_get("/{name}/quick", for_aiohttp.locked("{name}", timeout=2)(handle))
    await go_through(serving(site))
    assert warned(caplog) == [("/{name}/patient",)]


def warned(caplog: pytest.LogCaptureFixture) -> list[tuple[str, ...]]:
    records = [one for one in caplog.records if one.name == "asynclock.web"]
    assert all(one.levelno == logging.WARNING for one in records)
    found = [one.asynclock_routes for one in records]  # type: ignore[attr-defined]
    for one, routes in zip(records, found, strict=True):
        assert one.getMessage().endswith(f": {', '.join(routes)}")
    return found


async def nothing(name: str) -> None: ...


async def handle(request: web.Request, lease: Lease) -> web.Response:
    return web.Response()
