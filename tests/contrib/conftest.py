"""A served application and what its nodes keep."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from aiohttp import web

import asynclock
from asynclock.contrib.aiohttp import LOCKS
from asynclock.testing import LocalServer
from tests.contrib.apps import FRAMEWORKS, MAKERS, Witness, serving

PATIENT: dict[str, Any] = {
    "restart_guard": False,
    "ttl": 60.0,
    "max_ttl": 60.0,
    "node_timeout": 5.0,
}
"""Leases that outlive every test: a key that is gone was released. And time for a busy machine."""


async def lock_keys(nodes: list[LocalServer]) -> list[str]:
    """The keys of locks that any living node keeps."""
    found: list[str] = []
    for node in nodes:
        if node.alive and not node.frozen:
            keys: Any = await node.command("KEYS", "asynclock:*")
            found += [
                key for key in keys if not key.endswith((":#fence", ":#primary", ":#witness"))
            ]
    return found


@dataclass
class Service:
    """One application behind a real port."""

    url: str
    client: httpx.AsyncClient
    witness: Witness
    nodes: list[LocalServer]
    app: Any

    async def free(self) -> bool:
        return not await lock_keys(self.nodes)

    @property
    def locks(self) -> asynclock.LockManager:
        """The manager of the running application."""
        app = self.app
        return app[LOCKS] if isinstance(app, web.Application) else app.state.asynclock


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Start = Callable[..., contextlib.AbstractAsyncContextManager[Service]]


@pytest.fixture
def start(asynclock_nodes: list[LocalServer], framework: str) -> Start:
    """Start the service with some settings of its own."""

    @contextlib.asynccontextmanager
    async def run(maker: Callable[..., Any] | None = None, **settings: Any) -> AsyncIterator[Any]:
        witness = Witness()
        urls = [node.url for node in asynclock_nodes]
        app = (maker or MAKERS[framework])(witness, *urls, **{**PATIENT, **settings})
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield Service(url, client, witness, asynclock_nodes, app)
            witness.go_on.set()

    return run
