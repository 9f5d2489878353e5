"""Objects dropped without a close or release warn, and their work ends."""

import asyncio
import contextvars
import gc
import logging
import weakref
from typing import Any

import pytest

import asynclock
from asynclock.events import Lost
from asynclock.testing import LocalServer
from asynclock.testing import until as found
from tests.engine.kinds import calls
from tests.patient import connect_to as connect
from tests.waiting import until

who = contextvars.ContextVar("who", default="nobody")

TTL = 2.4
"""Seconds; a lease that is renewed without end would fail these tests."""

LOCKS = calls("strict", "fair_lock", "one of two", "several", "write")
LOCKS["inherited"] = lambda locks: locks.reentrant_lock("a", inherit=True).acquire()


@pytest.mark.parametrize("kind", LOCKS)
async def test_a_dropped_lease_is_told_and_ends_with_its_ttl(
    asynclock_nodes: list[LocalServer], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    lost: list[Lost] = []

    def observe(event: object) -> None:
        if isinstance(event, Lost):
            lost.append(event)

    async def free() -> bool:
        keys = [key for node in asynclock_nodes for key in await node.command("KEYS", "*")]
        return all(key.endswith((":#fence", ":#witness")) for key in keys)

    async with connect(asynclock_nodes, ttl=TTL, observers=[observe]) as locks:
        with pytest.warns(ResourceWarning, match="the lease on 'a.*' .* was dropped"):
            await LOCKS[kind](locks)
            gc.collect()
        # Its code may still run: the name is not given to anybody at once.
        assert not lost
        assert not await free() or lost  # a machine may be slow enough for the ttl to pass
        await until(lambda: not locks.leases() and lost, "it is lost")
        assert "dropped" in lost[0].reason
        assert {record.levelname for record in caplog.records} == {"ERROR"}

        await found(free, "the key is gone")


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("inherit", [False, True])
async def test_a_dropped_hold_keeps_neither_its_name_nor_its_task(
    asynclock_nodes: list[LocalServer], *, inherit: bool, thread: bool
) -> None:
    async with connect(asynclock_nodes, ttl=TTL) as locks:
        lock = locks.reentrant_lock("a", inherit=inherit)
        task = asyncio.create_task(lock.acquire())
        leases, seen = [await task], weakref.ref(task)
        del task

        async def collected() -> bool:  # a collection does nothing while another one runs
            await asyncio.to_thread(gc.collect) if thread else gc.collect()
            return seen() is None

        with pytest.warns(ResourceWarning, match="was dropped"):
            leases.clear()
            await found(collected, "nothing keeps the task")
        await until(lambda: not locks.leases(), "it is lost")


@pytest.mark.parametrize("first", ["inner", "outer"])
async def test_a_dropped_inner_hold_is_told_and_ends_with_the_ttl(
    asynclock_nodes: list[LocalServer], first: str
) -> None:
    async with connect(asynclock_nodes, ttl=TTL) as locks:
        lock = locks.reentrant_lock("a")
        outer = await lock.acquire()
        inner = [await lock.acquire()]
        if first == "outer":
            await outer.release()
        what = "a hold" if first == "inner" else "the lease"
        with pytest.warns(ResourceWarning, match=f"{what} on .* was dropped"):
            inner.clear()
        if first == "inner":
            assert outer.depth == 1
            assert outer.held
            await outer.release()
        assert await locks.lock("a").try_acquire() is None  # the dropped hold's code may still run
        await until(lambda: outer.lost_reason is not None, "it is lost")
        assert "dropped" in str(outer.lost_reason)


async def test_a_waiter_gets_what_was_dropped(asynclock_nodes: list[LocalServer]) -> None:
    async with connect(asynclock_nodes, ttl=TTL) as locks:
        lease = await locks.lock("a").acquire()
        waiting = asyncio.create_task(locks.lock("a").acquire(timeout=10))
        await until(lambda: locks.statistics().waiting == 1, "it waits")
        with pytest.warns(ResourceWarning, match="was dropped"):
            del lease
            gc.collect()
        await (await waiting).release()


async def test_dropped_in_another_thread(asynclock_nodes: list[LocalServer]) -> None:
    async with connect(asynclock_nodes, ttl=TTL) as locks:
        leases = [await locks.lock("a").acquire()]
        with pytest.warns(ResourceWarning, match="was dropped"):
            await asyncio.to_thread(leases.clear)
        assert locks.statistics().held == 0
        await until(lambda: not locks.leases(), "it is lost")
        await (await locks.lock("a").acquire(timeout=10)).release()


@pytest.mark.filterwarnings("error")
async def test_what_is_entered_is_not_dropped(asynclock_nodes: list[LocalServer]) -> None:
    async with connect(asynclock_nodes) as locks:
        async with locks.lock("a"), locks.lock("b").acquire(), await locks.lock("c").acquire():
            async with locks.reentrant_lock("d"), locks.multi_lock("e", "f"):
                async with locks.election("g").campaign():
                    gc.collect()
                    await asyncio.sleep(0)
                    assert len(locks.leases()) == 6
        gc.collect()


async def test_the_background_has_no_callers_context(
    asynclock_nodes: list[LocalServer], caplog: pytest.LogCaptureFixture
) -> None:
    """What renewals and connections say is not said in the name of the first request."""
    seen: set[str] = set()

    def observe(event: object) -> None:
        if type(event).__name__ in ("Renewed", "Lost", "NodeDown", "NodeUp"):
            seen.add(who.get())

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.add(who.get())

    locks = connect(asynclock_nodes, ttl=TTL, observers=[observe])
    try:

        async def first(name: str, **settings: Any) -> asynclock.Lease:
            who.set("the first caller")
            return await locks.lock(name, **settings).acquire()

        handler = Noting()
        logging.getLogger("asynclock").addHandler(handler)
        try:
            brief = await asyncio.create_task(first("b", renew=False))
            await until(lambda: brief.lost_reason, "its ttl is over")
            lease = await asyncio.create_task(first("a"))
            await until(lambda: locks.statistics().renewed > 1, "it is renewed")
            for node in asynclock_nodes:
                await node.kill()
            await until(lambda: lease.lost_reason, "it is lost")
        finally:
            logging.getLogger("asynclock").removeHandler(handler)
    finally:
        await locks.aclose()
    assert seen == {"nobody"}
