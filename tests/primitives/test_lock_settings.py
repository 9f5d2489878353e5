"""The settings of locks: each has an effect alone and beside others, and wrong ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asynclock
from asynclock._engine.options import LeaseOptions
from tests.engine.virtual_nodes import Nodes, virtual_single
from tests.tables.inside import now
from tests.waiting import in_virtual_time


@pytest.fixture
async def locks() -> AsyncIterator[asynclock.LockManager]:
    async with asynclock.connect("memory://a", ttl=5, max_ttl=20) as locks:
        yield locks


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"ttl": 8.0},
        {"renew": False},
        {"max_hold": 60.0},
        {"interrupt": False},
        {"handoff": False},
        {"handoff": "strict"},
        {"ttl": 8.0, "renew": False, "max_hold": 60.0, "interrupt": False, "handoff": "strict"},
    ],
    ids=lambda given: "-".join(given) or "none",
)
async def test_each_setting_counts(locks: asynclock.LockManager, given: dict[str, Any]) -> None:
    wanted = LeaseOptions(**{"ttl": 5.0, **given})
    assert locks.lock("a", **given)._options == wanted
    assert locks.semaphore("a", 2, **given)._options == wanted
    assert locks.multi_lock("a", "b", **given)._options == wanted


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"ttl": 21.0}, asynclock.ConfigurationError),
        ({"ttl": 0}, asynclock.ConfigurationError),
        ({"max_hold": -1}, asynclock.ConfigurationError),
        ({"max_hold": "long"}, asynclock.ConfigurationError),
        ({"handoff": "maybe"}, asynclock.ConfigurationError),
        ({"timeout": -1}, asynclock.ConfigurationError),
        ({"timeout": "long"}, asynclock.ConfigurationError),
        ({"time_out": 1}, TypeError),
    ],
    ids=str,
)
async def test_wrong_settings_are_refused(
    locks: asynclock.LockManager, given: dict[str, Any], error: type[Exception]
) -> None:
    for make in (locks.lock, locks.rwlock, locks.reentrant_lock, locks.fair_lock):
        with pytest.raises(error):
            lock: Any = make("a", **given)
            if isinstance(lock, asynclock.ReadWriteLock):
                lock.read()


@pytest.mark.parametrize(
    ("given", "longest"),
    [({}, 10.0), ({"ttl": 5}, 10.0), ({"ttl": 30}, 30.0), ({"ttl": 5, "max_ttl": 6}, 6.0)],
    ids=str,
)
def test_the_longest_ttl_of_the_fleet(given: dict[str, Any], longest: float) -> None:
    assert asynclock.connect("memory://a", **given)._defaults.max_ttl == longest


def test_a_managers_times_must_fit_together() -> None:
    asynclock.connect("memory://a", node_timeout=2.5, max_ttl=10)
    with pytest.raises(asynclock.ConfigurationError, match="a quarter of max_ttl"):
        asynclock.connect("memory://a", node_timeout=2.51, ttl=10, max_ttl=10)
    with pytest.raises(asynclock.ConfigurationError):
        asynclock.connect("memory://a", ttl=11, max_ttl=10)


def test_a_prefix_is_empty_or_a_text_without_the_marker() -> None:
    assert asynclock.connect("memory://a", prefix="")._defaults.prefix == ""
    for wrong in ("a:#", 7, None):
        with pytest.raises(asynclock.ConfigurationError):
            asynclock.connect("memory://a", prefix=wrong)  # type: ignore[arg-type]  # that is the point


# ---- timeouts ------------------------------------------------------------------------------------


async def entered(lock: Any) -> None:
    async with lock:
        raise AssertionError("others have it")


@virtual_single
async def test_a_locks_own_timeout_counts_wherever_none_is_given(on: Nodes) -> None:
    await on.ghost()
    for timeout in (0, 3):
        for lock in (
            on.locks.lock("a", timeout=timeout),
            on.locks.multi_lock("a", "b", timeout=timeout),
            on.locks.reentrant_lock("a", timeout=timeout),
        ):
            for call in (lock.acquire, lambda lock=lock: entered(lock)):
                began = now()
                with pytest.raises(asynclock.AcquireTimeoutError):
                    await call()
                took = now() - began
                assert timeout <= took <= max(timeout, 1.0) + 0.1


@in_virtual_time
async def test_none_is_a_timeout_without_an_end() -> None:
    """It isn't the lock's own timeout."""
    async with asynclock.connect("memory://a") as locks, asynclock.connect("memory://a") as others:
        await others.lock("a", renew=False, ttl=10).acquire()
        await others.election("e", renew=False, ttl=10).campaign()
        lease = await locks.lock("a", timeout=1).acquire(timeout=None)
        assert lease.held
        term = await locks.election("e", timeout=1).campaign(timeout=None)
        assert term.held


@in_virtual_time
async def test_an_elections_own_timeout_counts() -> None:
    both: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"timeout": 2}, {}),
        ({}, {"timeout": 2}),
        ({"timeout": 0}, {"timeout": 2}),
    ]
    async with asynclock.connect("memory://a") as locks, asynclock.connect("memory://a") as others:
        async with others.election("e").campaign():
            for own, given in both:
                began = now()
                with pytest.raises(asynclock.AcquireTimeoutError):
                    async with asyncio.timeout(30):
                        await locks.election("e", **own).campaign(**given)
                assert 2 <= now() - began < 2.1
