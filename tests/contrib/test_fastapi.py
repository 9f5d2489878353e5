"""What only FastAPI does: dependencies, threads, streams, lifespans, mounted applications.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import BackgroundTasks, FastAPI, Request
from starlette.middleware.base import BaseHTTPMiddleware

import asynclock
from asynclock import Lease
from asynclock.contrib._disconnect import Presence
from asynclock.contrib.fastapi import Locked, Locks, lifespan, locked, locks_of, setup
from asynclock.errors import ConfigurationError
from asynclock.testing import LocalServer
from tests.contrib.apps import Witness, fastapi_app, serving
from tests.contrib.conftest import PATIENT, Start
from tests.contrib.test_http import ask_and_hang_up
from tests.waiting import until


@pytest.fixture
def framework() -> str:
    return "fastapi"


async def test_the_decorator_asks_clients_for_nothing_more(start: Start) -> None:
    async with start() as service:
        answer = await service.client.post("/orders/42/decorated")
        assert answer.json() == {"held": ["orders:42"], "order": 42}
        schema = (await service.client.get("/openapi.json")).json()
        parameters = schema["paths"]["/orders/{order_id}/decorated"]["post"]["parameters"]
        assert [parameter["name"] for parameter in parameters] == ["order_id"]


async def test_a_thread_is_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't be interrupted: the lock stays as long as the function runs, client or not."""
    judge, cancelled = Presence._judge, asyncio.Event()

    def note(presence: Presence) -> None:
        judge(presence)
        if presence.scope.cancel_called:
            cancelled.set()

    monkeypatch.setattr(Presence, "_judge", note)
    async with start() as service:
        go = asyncio.Event()
        client = asyncio.create_task(ask_and_hang_up(service.url, "/orders/42/thread", go))
        await until(lambda: bool(service.witness.entered))
        go.set()
        await client
        await until(cancelled.is_set)
        assert not await service.free()
        service.witness.go_on.set()
        await until(service.free)
        assert service.witness.left == ["done"]


async def test_a_stream_is_sent_without_the_lock(start: Start) -> None:
    async with start() as service:
        async with service.client.stream("POST", "/orders/42/stream") as answer:
            await until(service.free)
            service.witness.go_on.set()
            assert await answer.aread() == b"free end"


async def test_entered_in_one_task_and_left_in_another(asynclock_nodes: list[LocalServer]) -> None:
    """Some middleware and servers run dependencies like this: no RuntimeError, and a release."""
    hold: Any = Locked("orders:{order_id}").dependency
    async with asynclock.connect(*(n.url for n in asynclock_nodes), **PATIENT) as locks:
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


async def test_inside_a_middleware_with_a_task_of_its_own(start: Start) -> None:
    def maker(witness: Witness, *nodes: Any, **settings: Any) -> FastAPI:
        app = fastapi_app(witness, *nodes, **settings)

        async def pass_on(request: Request, call_next: Any) -> Any:
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
        return app

    async with start(maker) as service:
        assert (await service.client.post("/orders/1/quick")).status_code == 200
        go = asyncio.Event()
        client = asyncio.create_task(ask_and_hang_up(service.url, "/orders/2/hold", go))
        await until(lambda: len(service.witness.entered) == 2)
        go.set()
        await client
        await until(service.free)
        assert service.witness.left == ["done", "interrupted"]


async def test_what_runs_after_the_answer_is_not_ended(start: Start) -> None:
    """To a listener, an answered request looks like one whose client has gone."""

    def maker(witness: Witness, *nodes: Any, **settings: Any) -> FastAPI:
        app = FastAPI()
        setup(app, *nodes, **settings)

        @app.post("/orders/{order_id}")
        async def order(
            tasks: BackgroundTasks, lease: Annotated[Lease, Locked("orders:{order_id}")]
        ) -> None:
            async def afterwards() -> None:
                await asyncio.sleep(0.2)
                await witness.work("afterwards", wait=False)

            tasks.add_task(afterwards)

        return app

    async with start(maker) as service:
        assert (await service.client.post("/orders/1")).status_code == 200
        await until(lambda: service.witness.left == ["done"])


async def test_lifespans_and_mounted_applications(asynclock_nodes: list[LocalServer]) -> None:
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
    setup(app, *(node.url for node in asynclock_nodes), **PATIENT)
    app.mount("/inner", inner)
    for _ in range(2):  # an application may be started again: each time with a new manager
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            found = (await client.get("/inner/a")).json()
            assert found == {"lease": "a", "mine": 1, "same": True}
    assert seen == ["ended"] * 2


async def test_a_manager_of_the_application_is_closed_with_it(
    asynclock_nodes: list[LocalServer],
) -> None:
    locks = asynclock.connect(*(node.url for node in asynclock_nodes), **PATIENT)
    app = FastAPI()
    async with lifespan(locks)(app) as state:
        assert state == {"asynclock": locks}
        assert app.state.asynclock is locks
    with pytest.raises(ConfigurationError, match="closed"):
        await locks.lock("a").try_acquire()


def test_forgotten_setup_is_said() -> None:
    with pytest.raises(ConfigurationError, match="setup"):
        locks_of(Request({"type": "http", "app": FastAPI(), "state": {}}))


def test_only_async_functions_are_decorated() -> None:
    with pytest.raises(ConfigurationError, match=r"async function.*Locked\(\.\.\.\)"):

        @locked("a")  # type: ignore[arg-type]  # on purpose
        def plain() -> None: ...
