"""Clocks that jump: theirs and ours. Kleppmann's two timelines, and the rest.

https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from asynclock import _clock
from asynclock._engine.attempt import Attempt
from asynclock._engine.batch import Batch
from asynclock._rules import validity
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests import patient
from tests.guards.conftest import TTL, Connect, second_lease
from tests.waiting import until

Prepare = Callable[..., Any]


async def test_timeline_one_a_clock_jumps(
    seasoned: Prepare, cut_off: Prepare, connect: Connect, guarded: bool
) -> None:
    """Client 1 has A, B and C; C's clock jumps and its key expires; client 2 gets C, D and E."""
    servers = await seasoned(5)
    first = connect(*await cut_off(servers, 3, 4), clock_guard=guarded)
    second = connect(*await cut_off(servers, 0, 1), clock_guard=guarded)
    await asyncio.gather(first.ready(), second.ready())
    lease = await first.lock("a", renew=False).acquire(timeout=2)
    servers[2].jump_clock(120)
    # The first request is too late by C's new clock, guard or not; the next ones are not.
    rival = await second_lease(second, "a")
    assert lease.held, "too slow a machine for this test"
    assert (rival is not None) is not guarded
    if guarded:
        health = second.nodes()[2]
        assert health.state == "quarantined"
        assert 119.5 < _jump_in(health.cause) < 120.5
        later = await second.lock("a").acquire(timeout=3 * TTL)
        assert not lease.held
        assert later.fence > lease.fence


async def test_timeline_two_a_long_pause(
    asynclock_servers: StartServers,
    connect: Connect,
    guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client 1 asks and pauses; the replies wait until its keys have expired and client 2 is in.

    The guard is to count validity from before the first byte was sent; the sabotage counts from
    the moment the replies are read, as a client without that rule does.
    """
    servers = await asynclock_servers(3)
    urls = [server.url for server in servers]
    first = connect(*urls, restart_guard=False, ttl=1.0)
    await first.ready()
    if not guarded:
        _validity_from_the_end(monkeypatch)
    rival = _Elsewhere(urls, servers)
    for server in servers:
        await server.freeze()
    asking = asyncio.ensure_future(first.lock("a").try_acquire())
    for _ in range(5):  # the requests are written in one of the next turns of the loop
        await asyncio.sleep(0)
    rival.start()
    assert rival.holds.wait(20)  # blocks this loop: a pause of the whole process
    try:
        lease = await asking
        assert (lease is not None and lease.held) is not guarded
    finally:
        rival.leave.set()
        await asyncio.to_thread(rival.join)


async def _counts(server: LocalServer) -> bool:
    """Return whether the server has granted the lock to somebody: its counter stays."""
    return bool(await server.command("EXISTS", "asynclock:a:#fence"))


class _Elsewhere(threading.Thread):
    """A client with a loop of its own that takes the lock and keeps it."""

    def __init__(self, urls: list[str], servers: list[LocalServer]) -> None:
        super().__init__()
        self._urls = urls
        self._servers = servers
        self.holds, self.leave = threading.Event(), threading.Event()

    def run(self) -> None:
        asyncio.run(self._hold())

    async def _hold(self) -> None:
        for server in self._servers:
            await server.thaw()
        for server in self._servers:
            await until(partial(_counts, server), "the first client's requests come first")
        async with patient.connect(*self._urls, restart_guard=False) as locks:
            async with locks.lock("a").acquire(timeout=15):
                self.holds.set()
                await until(self.leave.is_set, "the thread may leave")


def _validity_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(attempt: Attempt) -> float:
        return validity.valid_until(_clock.now(), attempt._ttl)

    monkeypatch.setattr(Attempt, "valid_until", property(late, lambda _self, _value: None))
    batch = property(lambda batch: validity.valid_until(_clock.now(), batch.ttl), lambda *_: None)
    monkeypatch.setattr(Batch, "valid_until", batch)


@pytest.mark.parametrize("by", [-120.0, -0.5, 0.5, 120.0])
async def test_a_jump_is_seen_in_the_next_reply(
    seasoned: Prepare, connect: Connect, by: float
) -> None:
    servers = await seasoned(3)
    locks = connect(*[server.url for server in servers])
    await locks.ready()
    servers[1].jump_clock(by)
    assert await locks.lock("a").try_acquire() is not None  # the others are a majority
    await until(lambda: locks.nodes()[1].state == "quarantined")
    seen = locks.nodes()[1]
    # A reply that comes late tells of a clock some time ago.
    assert abs(_jump_in(seen.cause) - by) < 0.4 + (seen.round_trip or 0.0)
    assert [locks.nodes()[n].state for n in (0, 2)] == ["up", "up"]


async def test_a_jump_is_seen_without_traffic(seasoned: Prepare, connect: Connect) -> None:
    """An idle node is asked for its clock: a jump can't hide between two locks."""
    (server,) = await seasoned(1)
    locks = connect(server.url, ttl=1.0, max_ttl=2.0)
    await locks.ready()
    server.jump_clock(5)
    await until(lambda: locks.nodes()[0].state == "quarantined")


@pytest.mark.parametrize("n", [1, 3])
async def test_our_own_clock_stands_still(
    seasoned: Prepare,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    guarded: bool,
    n: int,
) -> None:
    """A virtual machine that was paused: all nodes seem to jump; what is held ends sooner."""
    servers = await seasoned(n)
    locks = connect(
        *[server.url for server in servers], ttl=60.0, max_ttl=60.0, clock_guard=guarded
    )
    lease = await locks.lock("a").acquire(timeout=5)
    boot_time, began = _clock.now, _clock.now()
    monkeypatch.setattr(_clock, "now", lambda: boot_time() - 20.0)
    assert 70 < lease.remaining() < 80  # deceived, as our clock is
    await locks.inspect("something else")
    if guarded:  # it ends sooner by itself, and not because time passes
        await until(lambda: lease.remaining() + boot_time() - began < 60)
    else:
        await asyncio.sleep(0.1)
        assert lease.remaining() > 70


@pytest.mark.parametrize("n", [1, 3, 5])
async def test_our_own_clock_stands_still_again_and_again(
    seasoned: Prepare, connect: Connect, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """Each time counts, and once: a virtual machine that stutters loses as much of each lease."""
    servers = await seasoned(n)
    locks = connect(*[server.url for server in servers], ttl=60.0, max_ttl=60.0)
    lease = await locks.lock("a", renew=False).acquire(timeout=5)
    boot_time, behind = _clock.now, 0.0
    monkeypatch.setattr(_clock, "now", lambda: boot_time() - behind)
    ends = boot_time() + lease.remaining()
    for _ in range(3):
        time.sleep(0.4)  # noqa: ASYNC251 - all of us stands still
        behind += 0.4
        await locks.inspect("something else")
    await until(lambda: lease.remaining() < ends - boot_time() + 0.1, timeout=3)
    await asyncio.sleep(0.05)
    assert lease.remaining() > ends - boot_time() - 0.3  # and no more than that is lost


async def test_a_renewal_during_which_our_clock_stood_still(
    seasoned: Prepare, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from the request on, which is longer ago than our clock says."""
    servers = await seasoned(3)
    locks = connect(*[server.url for server in servers], ttl=60.0, max_ttl=60.0)
    lease = await locks.lock("a", renew=False).acquire(timeout=5)
    boot_time, behind = _clock.now, 0.0
    monkeypatch.setattr(_clock, "now", lambda: boot_time() - behind)
    began = boot_time()
    extending = asyncio.ensure_future(lease.extend())
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 - before the request is written
    behind = 0.5
    await extending
    assert lease.remaining() <= began + 60.0 * 0.99 - boot_time() + 0.1


@pytest.mark.parametrize("n", [1, 3])
async def test_our_own_clock_stood_still_for_longer_than_the_lease(
    seasoned: Prepare, connect: Connect, guarded: bool, n: int
) -> None:
    """To us it looks the same as a jump of a quorum of nodes, and either way the keys are gone."""
    servers = await seasoned(n)
    locks = connect(*[server.url for server in servers], clock_guard=guarded)
    lease = await locks.lock("a", renew=False).acquire(timeout=5)
    for server in servers:
        server.jump_clock(20)
    await locks.inspect("something else")
    if guarded:
        await until(lambda: bool(lease.lost_reason))
        assert not lease.held
    else:
        await asyncio.sleep(0.1)
        assert lease.held
        assert not lease.lost_reason


def _jump_in(cause: str) -> float:
    """The seconds in "its clock jumped by +119.992 s: …"."""
    found = re.search(r"jumped by ([+-][0-9.]+) s", cause)
    assert found is not None, cause
    return float(found[1])
