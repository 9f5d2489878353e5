"""Servers that are not open to everybody."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import Certificates, make_certificates

Connect = Callable[..., asynclock.LockManager]


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    """`asynclock.connect`, with what it made closed at the end."""
    made: list[asynclock.LockManager] = []

    def make(*addresses: object, **options: Any) -> asynclock.LockManager:
        made.append(asynclock.connect(*addresses, **options))
        return made[-1]

    yield make
    for locks in made:
        await locks.aclose()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))
