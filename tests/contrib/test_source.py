"""How an application gets and ends its manager: starts that fail, ends that fail, second setups."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import FastAPI
from fastapi.testclient import TestClient

import asynclock
from asynclock import LockManager
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.contrib._source import Source
from asynclock.errors import ConfigurationError


async def assert_it_can_run_again(source: Source) -> None:
    source.replace(("memory://source-b",), {}, 409)
    async with source.run():
        with pytest.raises(ConfigurationError, match="runs"):
            source.replace(("memory://source-b",), {}, 409)
    source.replace(("memory://source-b",), {}, 409)


@pytest.mark.parametrize("error", [ConnectionError, ConfigurationError])
async def test_after_a_start_that_failed_setup_may_be_called(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async def fail(_locks: LockManager) -> LockManager:
        raise error("no start")

    source = Source(("memory://source-a",), {})
    with monkeypatch.context() as failing:
        failing.setattr(LockManager, "__aenter__", fail)
        with pytest.raises(error, match="no start"):
            await source.run().__aenter__()
    await assert_it_can_run_again(source)


@pytest.mark.parametrize("error", [ValueError, ConfigurationError])
async def test_an_application_that_ends_with_an_error_has_ended(error: type[Exception]) -> None:
    locks = asynclock.connect("memory://source-a")
    source = Source((locks,), {})
    with pytest.raises(error, match="at the end"):
        async with source.run():
            raise error("at the end")
    await assert_it_can_run_again(source)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[LockManager]:
    """The managers that were opened."""
    found: list[LockManager] = []
    enter = LockManager.__aenter__

    async def note(locks: LockManager) -> LockManager:
        found.append(locks)
        return await enter(locks)

    monkeypatch.setattr(LockManager, "__aenter__", note)
    return found


async def test_a_second_setup_of_fastapi_leaves_one_manager(opened: list[LockManager]) -> None:
    app, mine = FastAPI(), asynclock.connect("memory://source-c")
    for nodes in ("memory://source-a", "memory://source-b", mine):
        for_fastapi.setup(app, nodes)
    async with app.router.lifespan_context(app):
        assert opened == [mine]
        assert app.state.asynclock is mine


async def test_a_second_setup_of_aiohttp_leaves_one_manager(opened: list[LockManager]) -> None:
    app, mine = web.Application(), asynclock.connect("memory://source-c")
    for nodes in ("memory://source-a", "memory://source-b", mine):
        for_aiohttp.setup(app, nodes)
    async with TestServer(app):
        assert opened == [mine]
        assert app[for_aiohttp.LOCKS] is mine


def test_setup_of_an_application_that_has_started_is_refused() -> None:
    app = FastAPI()
    with TestClient(app) as client:
        assert client.get("/").status_code == 404
    with pytest.raises(ConfigurationError, match="has started"):
        for_fastapi.setup(app, "memory://")


async def test_a_lifespan_of_its_own_has_its_settings() -> None:
    settings: dict[str, Any] = {"ttl": 3.0, "max_ttl": 4.0}
    app = FastAPI(lifespan=for_fastapi.lifespan("memory://source-a", **settings))
    async with app.router.lifespan_context(app):
        async with app.state.asynclock.lock("a") as lease:
            assert lease.remaining() <= 3.0
        with pytest.raises(ConfigurationError, match="max_ttl"):
            app.state.asynclock.lock("a", ttl=4.5)
