"""What only aiohttp does: applications inside of others, sockets that wait, clients that go."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from asynclock import Lease
from asynclock.contrib._while_present import PRESENCE_INTERVAL, WhilePresent
from asynclock.contrib.aiohttp import (
    LOCKS,
    cleanup_context,
    health,
    locked,
    locks_of,
    problems,
    setup,
)
from asynclock.errors import ConfigurationError
from asynclock.testing import busy
from tests.contrib.apps import serving
from tests.waiting import until

NUMBERS = itertools.count()


def address() -> str:
    return f"memory://for-aiohttp-{next(NUMBERS)}"


def app_with_locks(handler: Any, path: str = "/") -> web.Application:
    app = web.Application()
    setup(app, address())
    app.router.add_get(path, handler)
    return app


async def test_an_application_inside_of_another_uses_its_own_nodes() -> None:
    seen: list[Any] = []

    @locked("a", timeout=0.02)
    async def show(request: web.Request, lease: Lease) -> web.Response:
        seen.append(locks_of(request))
        return web.Response()

    inner = app_with_locks(show)
    app = app_with_locks(show)
    app.add_subapp("/inner", inner)
    async with TestClient(TestServer(app)) as client:
        async with busy("a", app[LOCKS]):
            assert (await client.get("/")).status == 409
            assert (await client.get("/inner/")).status == 200
        async with busy("a", inner[LOCKS]):
            assert (await client.get("/inner/")).status == 409
    assert seen == [inner[LOCKS]]


async def test_a_client_that_goes_while_its_socket_waits_for_the_lock_leaves_the_queue() -> None:
    entered: list[str] = []

    @locked("a")
    async def chat(request: web.Request, lease: Lease) -> web.StreamResponse:
        entered.append(lease.name)
        return web.Response()

    app = app_with_locks(chat)
    # Not the server of aiohttp's tests, which cancels every handler of a client that goes.
    async with serving(app) as url, busy("a", app[LOCKS]):
        locks = app[LOCKS]
        async with ClientSession() as client:
            asking = asyncio.create_task(_connect(client, url))
            await until(lambda: locks.statistics().waiting == 1)
            asking.cancel()
            await asyncio.wait([asking])
        await until(lambda: locks.statistics().waiting == 0)
    assert not entered


async def _connect(client: ClientSession, url: str) -> None:
    async with client.ws_connect(url):
        pass


async def test_a_client_that_has_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """An operator reads errors; the access log has the status that others use for this."""
    answers: list[web.StreamResponse] = []
    inside, left = asyncio.Event(), asyncio.Event()

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        answer: web.StreamResponse = await handler(request)
        answers.append(answer)
        left.set()
        return answer

    @locked("a")
    async def hold(request: web.Request, lease: Lease) -> web.Response:
        inside.set()
        await asyncio.sleep(60)
        return web.Response()

    app = web.Application(middlewares=[note])
    setup(app, address())
    app.router.add_get("/", hold)
    async with serving(app) as url:
        async with ClientSession() as client:
            asking = asyncio.create_task(client.get(url))
            await asyncio.wait_for(inside.wait(), 30)
            asking.cancel()
            await asyncio.wait([asking])
        await asyncio.wait_for(left.wait(), 30)
    assert [answer.status for answer in answers] == [499]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("upgrade", ["websocket", "WebSocket"])
def test_a_socket_that_is_open_is_not_watched(upgrade: str) -> None:
    """Browsers and proxies write the header in their own ways."""

    async def look() -> bool:
        transport = SimpleNamespace(is_closing=lambda: True)
        writer = SimpleNamespace(output_size=100)
        request: Any = SimpleNamespace(
            headers={"Upgrade": upgrade}, transport=transport, writer=writer
        )
        with WhilePresent(request) as scope:
            return scope.cancel_called

    assert not asyncio.run(look())


@pytest.mark.parametrize("lost", ["none", "closing"])
async def test_a_client_that_was_never_there_is_noticed_at_once(lost: str) -> None:
    transport = None if lost == "none" else SimpleNamespace(is_closing=lambda: True)
    request: Any = SimpleNamespace(headers={}, transport=transport)
    with WhilePresent(request) as scope:
        await asyncio.sleep(30)
    assert scope.cancelled_caught


def test_a_client_that_goes_is_noticed_soon() -> None:
    """A lock that nobody needs keeps others waiting, so a tenth of a second is much."""
    assert PRESENCE_INTERVAL <= 0.1


async def test_health_is_not_cached() -> None:
    app = app_with_locks(health)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/")
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")


def test_a_decorated_handler_keeps_its_name() -> None:
    @locked("a")
    async def ship(request: web.Request, lease: Lease) -> web.Response:
        """Send it."""
        return web.Response()

    assert (ship.__name__, ship.__doc__) == ("ship", "Send it.")


@pytest.mark.parametrize("contended", [200, "409", None])
def test_the_middleware_alone_takes_one_of_two_statuses(contended: Any) -> None:
    with pytest.raises(ConfigurationError, match="409 or 423"):
        problems(contended)


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_each_method_of_a_view_is_checked(method: str) -> None:
    @locked("orders:{ordr_id}")
    async def order(view: Any, lease: Lease) -> web.Response:
        return web.Response()

    app = web.Application()
    setup(app, address())
    with pytest.raises(ConfigurationError, match=r"orders/{order_id}: .*needs 'ordr_id'"):
        app.router.add_view("/orders/{order_id}", type("Orders", (web.View,), {method: order}))


async def test_a_manager_that_is_composed_by_hand_checks_the_routes_at_the_start() -> None:
    @locked("orders:{ordr_id}")
    async def order(request: web.Request, lease: Lease) -> web.Response:
        return web.Response()

    app = web.Application()
    app.cleanup_ctx.append(cleanup_context(address()))
    app.router.add_get("/orders/{order_id}", order)
    with pytest.raises(ConfigurationError, match="needs 'ordr_id'"):
        await TestServer(app).start_server()


async def test_a_manager_that_is_composed_by_hand_has_its_settings() -> None:
    app = web.Application()
    app.cleanup_ctx.append(cleanup_context(address(), ttl=3.0, max_ttl=4.0))
    async with TestServer(app):
        async with app[LOCKS].lock("a") as lease:
            assert 2.0 < lease.remaining() <= 3.0
            with pytest.raises(ConfigurationError, match="max_ttl"):
                app[LOCKS].lock("a", ttl=4.5)


async def test_a_time_limit_around_a_lock_ends_the_handler() -> None:
    ended = asyncio.Event()

    @web.middleware
    async def limit(request: web.Request, handler: Any) -> web.StreamResponse:
        with anyio.move_on_after(0.05):
            return await handler(request)  # type: ignore[no-any-return]
        return web.Response(status=504)

    @locked("a")
    async def slow(request: web.Request, lease: Lease) -> web.Response:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return web.Response()

    app = app_with_locks(slow)
    app.middlewares.append(limit)
    async with TestClient(TestServer(app)) as client:
        assert (await asyncio.wait_for(client.get("/"), 30)).status == 504
        assert ended.is_set()
