"""A served application."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

import asynclock
from asynclock.testing import LocalServer
from tests.contrib.apps import FRAMEWORKS, MAKERS, PATIENT, Witness, manager_of, memory, serving
from tests.contrib.browser import binaries, driven


async def lock_keys(nodes: list[LocalServer]) -> list[str]:
    """The keys of locks that the nodes keep."""
    found: list[str] = []
    for node in nodes:
        keys: Any = await node.command("KEYS", "asynclock:*")
        found += [key for key in keys if not key.endswith((":#fence", ":#primary", ":#witness"))]
    return found


@dataclass
class Service:
    """One application behind a real port."""

    url: str
    client: httpx.AsyncClient
    witness: Witness
    app: Any

    async def free(self) -> bool:
        return not [one async for one in self.locks.inspect_all()]

    @property
    def locks(self) -> asynclock.LockManager:
        return manager_of(self.app)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Start = Callable[..., contextlib.AbstractAsyncContextManager[Service]]


@pytest.fixture
def start(framework: str) -> Start:
    """Start the service, on nodes in memory by default, with some settings of its own.

    `around` makes what is served of the application.
    """

    @contextlib.asynccontextmanager
    async def run(
        maker: Callable[..., Any] | None = None,
        nodes: list[str] | None = None,
        around: Callable[[Any], Any] = lambda app: app,
        **settings: Any,
    ) -> AsyncIterator[Any]:
        witness = Witness()
        make = maker or MAKERS[framework]
        app = make(witness, *(nodes or memory()), **{**PATIENT, **settings})
        async with serving(around(app)) as url, httpx.AsyncClient(base_url=url, timeout=60) as it:
            yield Service(url, it, witness, app)
            witness.go_on.set()

    return run


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """One browser for all tests of a worker: it takes seconds to start."""
    if binaries() is None:
        pytest.skip("no browser: chromium or chromedriver is not installed")
    with driven(tmp_path_factory.mktemp("browser")) as found:
        yield found
