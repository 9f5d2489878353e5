"""A loss is never silent and never late."""

import asyncio
import contextlib
import logging
import math
import time
from typing import Any

import pytest

import asynclock
from asynclock.events import Lost
from asynclock.testing import LocalServer
from asynclock.testing.memory import MemoryEndpoint, MemoryNode, Route
from tests import patient
from tests.engine.virtual_nodes import UNNOTICED
from tests.tables.inside import now
from tests.waiting import PATIENCE, in_virtual_time


@pytest.mark.parametrize("n", [1, 3])
async def test_a_mute_network_delays_no_news(
    asynclock_nodes: list[LocalServer], n: int, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = asynclock_nodes[:n]
    locks = patient.connect(*(node.url for node in nodes), restart_guard=False, ttl=1.0)
    began = 0.0
    with (
        caplog.at_level(logging.ERROR, "asynclock"),
        pytest.raises(asynclock.LeaseLostError) as caught,
    ):
        async with locks.lock("a") as lease:
            for node in nodes:
                await node.freeze()
            began = now()
            try:
                await asyncio.sleep(3 * PATIENCE)
            finally:
                ended = now()
                assert not lease.held
    # By the deadline of the last renewal that was answered; the rest is the machine's slowness.
    assert ended - began < 1.0 + PATIENCE
    # A machine that is so busy that the timer comes late names that as the cause.
    assert caught.value.reason in ("no quorum renewed it before its ttl ran out", UNNOTICED)
    assert len([r for r in caplog.records if "lost the lease" in r.message]) == 1
    for node in nodes:
        await node.thaw()
    await locks.aclose()


@pytest.mark.parametrize("event", ["Voted", "Acquired"])
async def test_an_observer_that_cancels_leaves_nothing_locked(
    asynclock_nodes: list[LocalServer], event: str
) -> None:
    def cancelling(seen: object) -> None:
        if type(seen).__name__ == event:
            raise asyncio.CancelledError

    async with patient.connect(asynclock_nodes[0].url, observers=[cancelling]) as locks:
        async with locks.lock("a") as lease:
            assert lease.held
        assert await asynclock_nodes[0].command("EXISTS", "asynclock:a") == 0


async def test_two_fifths_dead_works_three_is_an_outage(asynclock_nodes: list[LocalServer]) -> None:
    urls = [node.url for node in asynclock_nodes]
    dead = ["redis://127.0.0.1:1", "redis://127.0.0.1:2"]
    node_timeout = 1.0
    async with asynclock.connect(
        *urls, *dead, restart_guard=False, node_timeout=node_timeout
    ) as locks:
        async with locks.lock("a", timeout=10) as lease:
            assert lease.held
        await asynclock_nodes[0].freeze()
        begin = now()
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await locks.lock("a").try_acquire()
        took = now() - begin
        await asynclock_nodes[0].thaw()
        assert len(caught.value.nodes) == 3
        assert all(caught.value.nodes.values())
        assert took < 2 * node_timeout  # once, and the rest for a busy machine


@in_virtual_time
async def test_a_jump_of_the_nodes_clocks_is_not_blamed_on_the_event_loop() -> None:
    nodes = [MemoryNode(name) for name in "abc"]
    places: list[Any] = [MemoryEndpoint(node.name, node, Route()) for node in nodes]
    async with asynclock.connect(*places, restart_guard=False, ttl=10) as locks:
        lease = await locks.lock("a").acquire()
        await asyncio.sleep(1)
        for node in nodes:
            node.jump_clock(20)
        with contextlib.suppress(asynclock.QuorumUnavailableError):
            await locks.lock("b").try_acquire()
        await asyncio.sleep(1)
        assert not lease.held
        assert "busy" not in (lease.lost_reason or "")


@pytest.mark.parametrize("kind", ["lock", "semaphore", "hold"])
async def test_a_release_that_comes_after_the_end_tells_of_the_loss(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop was busy, or the machine slept: nothing else could notice that time had run out."""
    lost: list[object] = []
    async with asynclock.connect("memory://late", ttl=0.5, max_ttl=1.0, node_timeout=0.2) as locks:
        locks.observe(lambda event: lost.append(event) if isinstance(event, Lost) else None)
        wish: Any = {
            "lock": locks.lock("a"),
            "semaphore": locks.semaphore("a", 2),
            "hold": locks.reentrant_lock("a"),
        }[kind]
        released = None
        with (
            caplog.at_level(logging.ERROR, "asynclock"),
            pytest.raises(asynclock.LeaseLostError, match="event loop was busy"),
        ):
            async with wish.acquire() as lease:
                time.sleep(0.6)  # noqa: ASYNC251 - the loop is busy
                released = await lease.release()
        assert released is False
        assert locks.statistics().lost == len(lost) == 1
        assert locks.statistics().released == 0
    assert len([r for r in caplog.records if "lost the lease" in r.message]) == 1


async def test_a_flush_of_another_database_costs_no_lease(
    asynclock_nodes: list[LocalServer],
) -> None:
    server = asynclock_nodes[0]
    flush = "redis.call('SELECT', 1) redis.call('FLUSHDB')"

    async def scripts() -> int:
        found = await server.command("INFO", "commandstats")
        return int(found.partition("cmdstat_evalsha:calls=")[2].partition(",")[0])

    async with patient.connect(server.url) as locks:
        leases = [await locks.lock(f"{n}").acquire() for n in range(300)]
        before, began = await scripts(), now()
        for _ in range(100):
            await server.command("EVAL", flush, "0")
        most = 2 + math.log2(1 + (now() - began) / 0.1)  # how often each lease was renewed
        assert (await scripts() - before - 100) <= 2 * most  # 100 look for the witness
        assert all(lease.held for lease in leases)
