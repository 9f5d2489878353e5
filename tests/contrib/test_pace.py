"""Which Retry-After a client gets that found a lock held.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from fastapi import FastAPI, Request

import asynclock
from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.contrib._pace import MOST_REMEMBERED, Holds, Pace
from asynclock.contrib._source import Source
from asynclock.contrib.fastapi import Locked, Locks, locked, locks_of, setup
from asynclock.events import Lost, Released
from asynclock.testing import busy

MEMORY = ("memory://a", "memory://b", "memory://c")


def contended(remaining: float) -> asynclock.NotAcquiredError:
    return asynclock.NotAcquiredError("held", name="a", remaining=remaining)


@pytest.mark.parametrize(
    ("said", "holds", "advice"),
    [
        (None, [], 1.0),
        (None, [0.05], 0.05),
        (None, [3.0, 0.05], 2.7),
        (None, [60.0], 9.0),
        (7.5, [0.05], 7.5),
        (75.0, [0.05], 75.0),
    ],
)
def test_the_advice_follows_recent_holds(
    said: float | None, holds: list[float], advice: float
) -> None:
    pace, error = Pace(said), contended(9.0)
    for seconds in holds:
        pace.held(seconds)
    pace.advise(error)
    assert error.retry_after == pytest.approx(advice)


@pytest.mark.parametrize("framework", ["fastapi", "aiohttp"])
async def test_a_route_says_when_to_come_back(framework: str) -> None:
    answers = await ask_busy(framework, retry_after=4), await ask_busy(framework)
    assert answers == ("4", "1")


async def ask_busy(framework: str, **settings: Any) -> str:
    if framework == "fastapi":
        app = FastAPI()
        setup(app, *MEMORY)

        @app.get("/")
        @locked("a", timeout=0.02, **settings)
        async def root() -> None: ...

        async with app.router.lifespan_context(app), busy("a", app.state.asynclock):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return (await client.get("/")).headers["retry-after"]

    @for_aiohttp.locked("a", timeout=0.02, **settings)
    async def handler(request: web.Request, lease: Lease) -> web.Response:
        return web.Response()

    other = web.Application()
    for_aiohttp.setup(other, *MEMORY)
    other.router.add_get("/", handler)
    async with AiohttpClient(TestServer(other)) as caller:
        async with busy("a", other[for_aiohttp.LOCKS]):
            return (await caller.get("/")).headers["retry-after"]


async def test_a_quick_route_learns_its_own_pace() -> None:
    """With a ttl of 10 s and short holds, no client gets a Retry-After of 10 s."""
    app = FastAPI()
    setup(app, *MEMORY)
    inside, go_on = asyncio.Event(), asyncio.Event()

    @app.get("/{wait}")
    async def root(wait: bool, lease: Annotated[Lease, Locked("a", timeout=0.02)]) -> None:
        inside.set()
        if wait:
            await go_on.wait()

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.get("/false")
            inside.clear()
            first = asyncio.create_task(client.get("/true"))
            await inside.wait()
            answer = await client.get("/false")
            go_on.set()
            await first
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "1")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("framework", ["fastapi", "aiohttp"])
async def test_a_route_learns_how_long_it_holds_its_locks(
    monkeypatch: pytest.MonkeyPatch, framework: str, fails: bool
) -> None:
    """Each hold counts, also one that ends with an error; its waiting does not."""
    clock = SimpleNamespace(seconds=1e6)
    clock.now = lambda: clock.seconds

    def work() -> None:
        clock.seconds += 3.2
        if fails:
            raise ValueError("wrong")

    app: Any
    if framework == "fastapi":
        monkeypatch.setattr(for_fastapi, "_clock", clock)
        app = FastAPI()
        setup(app, *MEMORY)

        @app.get("/{name}")
        async def root(lease: Annotated[Lease, Locked("{name}", timeout=0.02)]) -> None:
            work()

        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with app.router.lifespan_context(app):
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                await client.get("/a")
                async with busy("b", app.state.asynclock):
                    advice = (await client.get("/b")).headers["retry-after"]
    else:
        monkeypatch.setattr(for_aiohttp, "_clock", clock)

        @for_aiohttp.locked("{name}", timeout=0.02)
        async def handler(request: web.Request, lease: Lease) -> web.Response:
            work()
            return web.Response()

        app = web.Application()
        for_aiohttp.setup(app, *MEMORY)
        app.router.add_get("/{name}", handler)
        async with AiohttpClient(TestServer(app)) as caller:
            await caller.get("/a")
            async with busy("b", app[for_aiohttp.LOCKS]):
                advice = (await caller.get("/b")).headers["retry-after"]
    assert advice == "4"


# ---- when to come back for a lock that no route declares -----------------------------------------


def test_the_advice_for_a_name_follows_its_holds_and_respects_the_handler() -> None:
    holds = Holds()
    for name, seconds in [("slow", 5.0), ("quick", 0.05)]:
        holds.note(Released(name, "owner", 1, seconds, 1.0))
    for name, set_to, advice in [
        ("slow", None, 5.0),
        ("quick", None, 0.05),
        ("never seen", None, 1.0),
        ("quick", 7.0, 7.0),
    ]:
        error = asynclock.NotAcquiredError("held", name=name, remaining=9.0)
        error.retry_after = set_to or error.retry_after
        holds.advise(error)
        assert error.retry_after == advice


def test_the_advice_of_a_route_stays() -> None:
    """Also if it is the rest of the holder's lease, as it is for a longer hold."""
    pace, error = Pace(None), contended(9.0)
    pace.held(60.0)
    pace.advise(error)
    Holds().advise(error)
    assert error.retry_after == 9.0


def test_the_number_of_remembered_names_is_bounded() -> None:
    holds = Holds()
    for number in range(MOST_REMEMBERED + 1):
        holds.note(Released(str(number), "owner", 1, 5.0, 1.0))
    for name, advice in [("0", 1.0), ("1", 5.0)]:
        error = asynclock.NotAcquiredError("held", name=name, remaining=9.0)
        holds.advise(error)
        assert error.retry_after == advice


def test_the_holds_of_many_names_are_remembered_and_losses_are_none() -> None:
    """The time until a loss says nothing of how long others hold the lock."""
    holds, names = Holds(), [str(number) for number in range(500)]
    for name in names:
        holds.note(Released(name, "owner", 1, 5.0, 1.0))
        holds.note(Lost(name, "owner", 2, "it ran out", 8.0))
    holds.note(Lost("lost", "owner", 1, "it ran out", 8.0))
    for name, advice in [*((name, 5.0) for name in names), ("lost", 1.0)]:
        error = asynclock.NotAcquiredError("held", name=name, remaining=9.0)
        holds.advise(error)
        assert error.retry_after == advice


def test_a_name_in_use_is_remembered_longest() -> None:
    holds = Holds()
    for name in ("used", *map(str, range(MOST_REMEMBERED - 1)), "used", "new"):
        holds.note(Released(name, "owner", 1, 5.0, 1.0))
    for name, advice in [("used", 5.0), ("new", 5.0), ("0", 1.0), ("1", 5.0)]:
        error = asynclock.NotAcquiredError("held", name=name, remaining=9.0)
        holds.advise(error)
        assert error.retry_after == advice


@pytest.mark.parametrize(
    ("remaining", "advice"), [(None, 0.2), (-0.5, 0.0), (0.1, 0.1), (9.0, 0.2)]
)
def test_the_pace_of_a_name_is_advised_whatever_is_known_of_the_holder(
    remaining: float | None, advice: float
) -> None:
    holds = Holds()
    holds.note(Released("a", "owner", 1, 0.2, 1.0))
    error = asynclock.NotAcquiredError("held", name="a", remaining=remaining)
    holds.advise(error)
    assert error.retry_after == advice


def test_a_route_may_advise_to_come_back_at_once() -> None:
    error = contended(9.0)
    Pace(0).advise(error)
    assert error.retry_after == 0


@pytest.mark.parametrize("where", ["handler", "middleware"])
@pytest.mark.parametrize("framework", ["fastapi", "aiohttp"])
async def test_a_lock_from_the_manager_learns_the_pace_of_its_name(
    framework: str, where: str
) -> None:
    """With a ttl of 10 s and short holds, no client gets a Retry-After of 10 s."""
    async with manager_app(framework, where) as (get, locks):
        assert (await get())[0] == 200
        async with busy("a", locks):
            assert await get() == (409, "1")
        locks._observers(Released("a", "owner", 1, 3.0, 1.0))
        async with busy("a", locks):
            assert await get() == (409, "3")


@contextlib.asynccontextmanager
async def manager_app(framework: str, where: str) -> AsyncIterator[tuple[Any, Any]]:
    """An application that takes the lock "a" from the manager, and a client of it."""
    if framework == "fastapi":
        app = FastAPI()
        setup(app, *MEMORY)

        @app.middleware("http")
        async def around(request: Request, call_next: Any) -> Any:
            if where == "handler":
                return await call_next(request)
            async with locks_of(request).lock("a", timeout=0.02):
                return await call_next(request)

        @app.get("/")
        async def root(locks: Locks) -> None:
            if where == "handler":
                async with locks.lock("a", timeout=0.02):
                    pass

        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app):
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

                async def get() -> tuple[int, str | None]:
                    answer = await client.get("/")
                    return answer.status_code, answer.headers.get("retry-after")

                yield get, app.state.asynclock
        return

    @web.middleware
    async def around_handler(request: web.Request, handler: Any) -> web.StreamResponse:
        async with for_aiohttp.locks_of(request).lock("a", timeout=0.02):
            return await handler(request)

    async def quick(request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def slow(request: web.Request) -> web.StreamResponse:
        return await around_handler(request, quick)

    # Composed by hand, which must do what `setup` does.
    layers = [for_aiohttp.problems(), *([around_handler] if where == "middleware" else [])]
    other = web.Application(middlewares=layers)
    other.cleanup_ctx.append(for_aiohttp.cleanup_context(*MEMORY))
    other.router.add_get("/", slow if where == "handler" else quick)
    async with AiohttpClient(TestServer(other)) as caller:

        async def fetch() -> tuple[int, str | None]:
            answer = await caller.get("/")
            return answer.status, answer.headers.get("retry-after")

        yield fetch, other[for_aiohttp.LOCKS]


async def test_an_application_that_has_ended_learns_no_more() -> None:
    locks = asynclock.connect("memory://a")
    source = Source((locks,), {})
    async with source.run():
        pass
    async with locks, locks.lock("a"):
        pass
    assert not source.holds._paces
