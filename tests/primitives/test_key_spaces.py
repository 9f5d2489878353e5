"""Locks, counters and records of neighbouring prefixes and names leave each other alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

import asynclock
from asynclock.fencing import FencedRedis, FenceStamp
from asynclock.testing import LocalServer
from tests.engine.virtual_nodes import Nodes, start, virtual_single
from tests.primitives.conftest import Connect


async def test_a_counter_is_no_lock_of_another_prefix(
    connect_to: Connect, asynclock_nodes: list[LocalServer]
) -> None:
    outer = connect_to(asynclock_nodes, prefix="app:")
    inner = connect_to(asynclock_nodes, prefix="app:x:")
    async with inner.lock("fence", timeout=1) as held:
        async with outer.lock("x", timeout=1):
            assert (await inner.inspect("fence")).owner == held.owner
        assert await inner.lock("fence").try_acquire() is None
    with pytest.raises(asynclock.ConfigurationError, match="must not contain"):
        inner.lock("#fence")  # "app:x:" and "#fence" would be the counter of "app:x"


async def test_a_record_of_fences_is_no_lock(
    connect_to: Connect, asynclock_nodes: list[LocalServer]
) -> None:
    client = Redis.from_url(asynclock_nodes[0].url)
    locks = connect_to(asynclock_nodes[:1])
    fenced = FencedRedis(client)
    try:
        await fenced.claim(FenceStamp("orders:42", 7))
        async with locks.lock("seen:orders:42", timeout=1):  # was blocked for a week
            await fenced.claim(FenceStamp("orders:42", 8))
        with pytest.raises(asynclock.ConfigurationError, match="must not contain"):
            await fenced.claim(FenceStamp("orders:42:#seen", 9))
    finally:
        await client.aclose()


Make = Callable[[asynclock.LockManager], Any]
KEYS: dict[str, tuple[Make, str, str]] = {
    "lock": (lambda locks: locks.lock("a").acquire(), "a a:#fence", "a:#queue"),
    "reentrant": (lambda locks: locks.reentrant_lock("a").acquire(), "a a:#fence", "a:#queue"),
    "fair": (lambda locks: locks.fair_lock("a").acquire(), "a:#fair a:#fair:#fence", "a:#waiters"),
    "election": (
        lambda locks: locks.election("a").campaign(),
        "a:#leader a:#leader:#fence a:#leader:#message",
        "a:#candidates",
    ),
    "write": (
        lambda locks: locks.rwlock("a").write().acquire(),
        "a:#write a:#write:#fence",
        "a:#phases",
    ),
    "slot": (lambda locks: locks.semaphore("a", 1).acquire(), "a:#0 a:#0:#fence", "a:#slots"),
    "several": (
        lambda locks: locks.semaphore("a", 1).several(1).acquire(),
        "a:#0 a:#0:#fence",
        "a:#several a:#several:#fence a:#slots",
    ),
    "several names": (
        lambda locks: locks.multi_lock("a", "b").acquire(),
        "a a:#fence b b:#fence",
        "",
    ),
}
"""The keys of a name that is held, and those that are there while somebody waits for it."""


@pytest.mark.parametrize("kind", KEYS)
@virtual_single
async def test_the_keys_of_each_kind(on: Nodes, kind: str) -> None:
    make, held, waited = KEYS[kind]

    async def keys() -> set[str]:
        found = await on.nodes[0].command("KEYS", "asynclock:*")
        names = {key.removeprefix("asynclock:") for key in found}
        return {name for name in names if not name.startswith((":#", "warm"))}

    holding = await make(on.locks)
    await asyncio.sleep(0.1)
    assert await keys() == {*held.split()}
    async with on.connect() as others:
        waiting = start(make(others))
        await asyncio.sleep(0.1)
        more = await keys() - {*held.split()}
        tickets = {key for key in more if len(key) > 30}
        assert more - tickets == {*waited.split()}
        for ticket in tickets:
            assert ticket.rpartition(":#")[0] in waited.split()
            assert 1000 < await on.nodes[0].command("PTTL", f"asynclock:{ticket}") <= 2000
        assert bool(tickets) == bool(waited)
        waiting.cancel()
        await asyncio.wait([waiting])
    await (holding.resign() if kind == "election" else holding.release())
