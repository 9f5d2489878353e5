"""Arguments of other libraries get an error with our argument."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

import asynclock
from asynclock.errors import ConfigurationError


@pytest.fixture
def locks() -> asynclock.LockManager:
    return asynclock.connect("redis://localhost")


CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda locks: locks.lock("a", blocking_timeout=2), "write timeout="),
    (lambda locks: locks.lock("a", expire=2), "write ttl="),
    (lambda locks: locks.semaphore("a", 2, sleep=0.1), "does not poll"),
    (lambda locks: locks.lock("a").acquire(blocking=False), r"write try_acquire\(\)"),
    (lambda locks: locks.lock("a", ttll=2), "'ttll'$"),
]


@pytest.mark.parametrize(("call", "answer"), CALLS)
def test_an_argument_of_another_library(
    locks: asynclock.LockManager, call: Callable[[Any], Any], answer: str
) -> None:
    with pytest.raises(TypeError, match=answer):
        call(locks)


def test_a_timedelta(locks: asynclock.LockManager) -> None:
    with pytest.raises(ConfigurationError, match=r"write 90$"):
        locks.lock("a", timeout=timedelta(minutes=1.5))  # type: ignore[arg-type]


def test_a_synchronous_client() -> None:
    with pytest.raises(ConfigurationError, match=r"synchronous client.*asynclock\.blocking"):
        asynclock.connect(redis.Redis())  # type: ignore[arg-type]


def test_a_closed_manager_opens_again_in_the_next_loop() -> None:
    locks = asynclock.connect("memory://")

    async def once() -> None:
        async with locks, locks.lock("a", timeout=2) as lease:
            assert lease.held

    for _ in range(2):
        asyncio.run(once())

    async def closed() -> None:
        with pytest.raises(ConfigurationError, match="closed"):
            await locks.lock("a").try_acquire()

    asyncio.run(closed())


def test_what_may_be_passed_on_is_what_connect_takes() -> None:
    import inspect

    from asynclock._settings import ConnectSettings

    keywords = [
        parameter.name
        for parameter in inspect.signature(asynclock.connect).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    assert keywords == list(ConnectSettings.__annotations__)
