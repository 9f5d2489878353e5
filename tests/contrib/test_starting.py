"""How an application gets and ends its manager: setups, starts that fail, tests, several clients.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, make_mocked_request
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

import asynclock
from asynclock import Lease, LockManager
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.contrib.fastapi import Locked, Locks, lifespan, locks_of
from asynclock.errors import ConfigurationError
from asynclock.testing import busy
from asynclock.testing.servers.process import ReservedPort
from tests.contrib.apps import client_of, manager_of, memory, serving, with_locks
from tests.docs.blocks import ROOT


def setup_of(framework: str) -> Any:
    return for_fastapi.setup if framework == "fastapi" else for_aiohttp.setup


def orders_app(framework: str, *nodes: Any, **settings: Any) -> Any:
    app = with_locks(framework, *nodes, **settings)
    if framework == "aiohttp":

        @for_aiohttp.locked("orders:{order_id}", timeout=0.05)
        async def order(request: web.Request, lease: Lease) -> web.Response:
            return web.json_response({"held": lease.held})

        app.router.add_post("/orders/{order_id}", order)
        return app

    @app.post("/orders/{order_id}")
    async def ship(
        order_id: int, lease: Annotated[Lease, Locked("orders:{order_id}", timeout=0.05)]
    ) -> dict[str, bool]:
        return {"held": lease.held}

    @app.post("/plain/{order_id}")
    async def plain(order_id: int, locks: Locks) -> dict[str, bool]:
        async with locks.lock(f"orders:{order_id}", timeout=0.05) as lease:
            return {"held": lease.held}

    return app


# ---- what is given -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("nodes", "settings", "error", "words"),
    [
        (("memory://",), {"contended": 200}, ConfigurationError, "409 or 423"),
        (("memory://",), {"contended": "409"}, ConfigurationError, "409 or 423"),
        (("memory://",), {"contended": None}, ConfigurationError, "409 or 423"),
        (("memory://",), {"ttll": 3}, TypeError, "ttll"),
        (("memory://",), {"ttl": -1}, ConfigurationError, "ttl"),
        (("manager",), {"ttl": 5.0}, ConfigurationError, r"has its settings already: \['ttl'\]"),
        (("manager", "memory://"), {}, ConfigurationError, "has its nodes already"),
    ],
)
def test_a_wrong_setting_is_found_by_setup(
    framework: str, nodes: Any, settings: Any, error: Any, words: str
) -> None:
    given = [asynclock.connect("memory://") if one == "manager" else one for one in nodes]
    with pytest.raises(error, match=words):
        with_locks(framework, *given, **settings)


@pytest.mark.parametrize("contended", [200, "409", None])
def test_the_middleware_alone_takes_one_of_two_statuses(contended: Any) -> None:
    with pytest.raises(ConfigurationError, match="409 or 423"):
        for_aiohttp.problems(contended)


def test_forgotten_setup_is_said() -> None:
    with pytest.raises(ConfigurationError, match="setup"):
        locks_of(Request({"type": "http", "app": FastAPI(), "state": {}}))
    with pytest.raises(ConfigurationError, match=r"call asynclock\.contrib\.aiohttp\.setup"):
        for_aiohttp.locks_of(make_mocked_request("GET", "/"))


async def test_a_middleware_of_aiohttp_outside_of_ours_is_refused_at_the_start() -> None:
    @web.middleware
    async def exclusive(request: web.Request, handler: Any) -> web.StreamResponse:
        return await handler(request)  # type: ignore[no-any-return]

    app = with_locks("aiohttp")
    app.middlewares.append(exclusive)  # inside, as those that were there before
    async with client_of(app) as (client, _):
        assert (await client.get("/")).status_code == 404

    app = with_locks("aiohttp")
    app.middlewares.insert(0, exclusive)
    with pytest.raises(ConfigurationError, match=r"exclusive.*outside.*problems\(\)"):
        await TestServer(app).start_server()


async def test_a_ttl_that_the_manager_refuses_is_said_at_the_start(framework: str) -> None:
    async def handler(*_: Any) -> Any: ...

    app = with_locks(framework, "memory://")
    if framework == "aiohttp":
        app.router.add_get("/a/{b}", for_aiohttp.locked("{b}", ttl=20.0)(handler))
    else:
        app.get("/a/{b}")(for_fastapi.locked("{b}", ttl=20.0)(handler))
    with pytest.raises(ConfigurationError, match=r"^route /a/{b}: ttl=20 is longer than max_ttl"):
        async with client_of(app):
            pass


# ---- setup again, start again --------------------------------------------------------------------
async def test_a_second_setup_replaces_the_nodes_until_the_application_runs(framework: str) -> None:
    app = orders_app(framework, "redis://nobody.invalid")
    setup_of(framework)(app, *memory(), contended=423)
    async with client_of(app) as (client, locks):
        with pytest.raises(ConfigurationError, match="runs"):
            setup_of(framework)(app, "memory://")
        async with busy("orders:42", locks):
            assert (await client.post("/orders/42")).status_code == 423
        assert (await client.post("/orders/42")).json() == {"held": True}


async def test_a_second_setup_leaves_one_manager(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[LockManager] = []
    enter = LockManager.__aenter__

    async def note(locks: LockManager) -> LockManager:
        opened.append(locks)
        return await enter(locks)

    monkeypatch.setattr(LockManager, "__aenter__", note)
    app, mine = with_locks(framework, "memory://"), asynclock.connect("memory://")
    for nodes in ("memory://other", mine):
        setup_of(framework)(app, nodes)
    async with client_of(app):
        assert opened == [mine]
        assert manager_of(app) is mine


def test_setup_after_the_start_is_refused() -> None:
    app = FastAPI()
    with TestClient(app) as client, pytest.raises(ConfigurationError, match="started"):
        assert client.get("/").status_code == 404
        for_fastapi.setup(app, "memory://")


@pytest.mark.parametrize("error", [ConnectionError, ConfigurationError])
async def test_after_a_start_that_failed_or_an_end_with_an_error_setup_may_be_called(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async def fail(_locks: LockManager) -> LockManager:
        raise error("no start")

    app = with_locks("fastapi")
    with monkeypatch.context() as failing:
        failing.setattr(LockManager, "__aenter__", fail)
        with pytest.raises(error, match="no start"):
            await app.router.lifespan_context(app).__aenter__()
    for_fastapi.setup(app, "memory://")
    with pytest.raises(error, match="at the end"):
        async with app.router.lifespan_context(app):
            raise error("at the end")
    for_fastapi.setup(app, "memory://")
    async with app.router.lifespan_context(app):
        with pytest.raises(ConfigurationError, match="runs"):
            for_fastapi.setup(app, "memory://")


def test_an_application_with_two_clients_runs_until_the_second_has_ended() -> None:
    app = orders_app("fastapi")
    with TestClient(app) as first:
        with TestClient(app) as second:
            for client in (first, second):
                assert client.post("/orders/42").json() == {"held": True}
        with pytest.raises(ConfigurationError, match="runs"):
            for_fastapi.setup(app, "memory://other")
        assert first.post("/orders/42").json() == {"held": True}
    for_fastapi.setup(app, "memory://other")


async def test_a_manager_survives_a_second_client(framework: str) -> None:
    """Aiohttp starts an application once, so each client of it has one of its own."""
    mine = asynclock.connect(*memory())
    app = orders_app(framework, mine)
    for _ in range(2):
        async with client_of(app) as (client, locks):
            assert locks is mine
            assert (await client.post("/orders/42")).json() == {"held": True}
        with pytest.raises(ConfigurationError, match="closed"):
            await mine.lock("a").try_acquire()
        app = orders_app(framework, mine) if framework == "aiohttp" else app


# ---- composed by hand ----------------------------------------------------------------------------
@pytest.mark.parametrize("given", [False, True])
async def test_a_manager_that_is_composed_by_hand(framework: str, given: bool) -> None:
    """With its settings, or as it was made."""
    settings: dict[str, Any] = {"ttl": 3.0, "max_ttl": 4.0}
    mine = asynclock.connect("memory://", **settings)
    nodes: Any = (mine,) if given else ("memory://",)
    app: Any
    if framework == "fastapi":
        app = FastAPI(lifespan=lifespan(*nodes, **({} if given else settings)))
    else:
        app = web.Application()
        app.cleanup_ctx.append(for_aiohttp.cleanup_context(*nodes, **({} if given else settings)))
    async with client_of(app) as (_, locks):
        assert (locks is mine) is given
        async with locks.lock("a") as lease:
            assert 2.0 < lease.remaining() <= 3.0
        with pytest.raises(ConfigurationError, match="max_ttl"):
            locks.lock("a", ttl=4.5)
    with pytest.raises(ConfigurationError, match="closed"):
        await locks.lock("a").try_acquire()


async def test_without_setup_the_manager_of_a_lifespan_is_found() -> None:
    """By a server, or a client of a test, that does not pass the state of the lifespan on."""
    app = FastAPI(lifespan=lifespan("memory://"))

    @app.get("/")
    async def root(lease: Annotated[Lease, Locked("a")]) -> str:
        return lease.name

    async with client_of(app) as (client, _):
        assert (await client.get("/")).json() == "a"


async def test_lifespans_and_mounted_applications() -> None:
    """The application's own lifespan runs inside ours; a mounted application finds the locks."""
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        assert await app.state.asynclock.lock("from-lifespan").try_acquire()
        yield {"mine": 1}
        seen.append("ended")

    inner = FastAPI()

    @inner.get("/{name}")
    async def get(
        name: str, request: Request, locks: Locks, lease: Annotated[Lease, Locked("{name}")]
    ) -> dict[str, Any]:
        return {"lease": lease.name, "mine": request.state.mine, "same": lease in locks.leases()}

    app = FastAPI(lifespan=own)
    for_fastapi.setup(app, *memory())
    app.mount("/inner", inner)
    for _ in range(2):  # an application may be started again: each time with a new manager
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            found = (await client.get("/inner/a")).json()
            assert found == {"lease": "a", "mine": 1, "same": True}
    assert seen == ["ended"] * 2


async def test_entered_in_one_task_and_left_in_another() -> None:
    """Some middleware and servers run dependencies like this: no RuntimeError, and a release."""
    hold: Any = Locked("orders:{order_id}").dependency
    async with asynclock.connect(*memory()) as locks:
        app = FastAPI()
        app.state.asynclock = locks
        scope = {"type": "http", "app": app, "state": {}}
        generator = hold(Request(scope), locks, "orders:42")
        lease = await asyncio.create_task(anext(generator))
        assert lease.held
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(anext(generator))
        assert not lease.held
        assert await locks.lock("orders:42").try_acquire() is not None


# ---- in tests, as docs/testing.md says -----------------------------------------------------------
async def test_a_name_is_busy_by_its_nodes_as_well() -> None:
    nodes = memory()
    async with client_of(orders_app("fastapi", *nodes)) as (client, _):
        async with busy("orders:42", *nodes) as lease:
            assert (await client.post("/plain/42")).status_code == 409
            assert lease.held
    async with asynclock.connect("memory://") as locks, busy("a"):  # the usual node
        assert await locks.lock("a").try_acquire() is None


def test_overrides_reach_all_ways_to_the_locks() -> None:
    app = orders_app("fastapi", "redis://nobody.invalid")
    with TestClient(orders_app("fastapi")) as other:  # its manager lives in the client's loop
        app.dependency_overrides[locks_of] = lambda: other.app.state.asynclock  # type: ignore[attr-defined]  # an ASGI app, says its type
        client = TestClient(app)
        client.portal = other.portal
        assert client.post("/orders/42").status_code == 200
        assert client.post("/plain/42").status_code == 200


# ---- a real server -------------------------------------------------------------------------------
SHOP = """
from fastapi import FastAPI
from asynclock.contrib.fastapi import locked, setup

app = FastAPI()
setup(app, "memory://shop")

@locked("orders:{order_id}")
@app.post("/orders/{order_id}")
async def ship(order_id: int) -> None: ...
"""


@pytest.mark.timeout(180)  # a server that imports a framework, on a busy machine
def test_plain_uvicorn_says_what_is_wrong_and_exits(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with ReservedPort() as port:
        ended = subprocess.run(
            [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 3, ended.stderr
    why = "route /orders/{order_id} takes no lock: put @locked below the route's decorator"
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr
