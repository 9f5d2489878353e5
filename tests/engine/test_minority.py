"""Waiters that reach only a minority of the nodes keep no place there. In virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import asynclock
from asynclock.testing.memory import MemoryNode
from tests.engine.kinds import kinds
from tests.engine.virtual_nodes import PATIENCE, Nodes, Way
from tests.tables.inside import now
from tests.waiting import call_off, in_virtual_time, until

NODE_TIMEOUT = 0.25
TTL = 5.0
KINDS = kinds("strict", "fair_lock", "reentrant_lock", "multi_lock", "one of two", "several")


@contextlib.asynccontextmanager
async def clients(count: int) -> AsyncIterator[tuple[list[MemoryNode], list[Any], list[list[Way]]]]:
    """Three nodes, and managers that have met them, each on ways of its own."""
    nodes = [MemoryNode(name) for name in "abc"]
    found, ways = [], []
    async with AsyncExitStack() as stack:
        for _ in range(count):
            own = [Way() for _ in nodes]
            settings = {"node_timeout": NODE_TIMEOUT, "ttl": TTL, "max_ttl": TTL}
            made = Nodes(nodes, own).connect(restart_guard=False, **settings)
            locks = await stack.enter_async_context(made)
            await locks.ready()
            found.append(locks)
            ways.append(own)
        yield nodes, found, ways


@contextlib.contextmanager
def cut_off(way: Way) -> Any:
    """Let nothing through on any connection, old or new."""
    usual = way.admit
    way.admit = lambda _stream, _data: False  # type: ignore[assignment,method-assign]
    yield
    way.admit = usual  # type: ignore[method-assign]


@pytest.mark.parametrize("timeout", [None, 0.5])
@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_who_reaches_a_minority_does_not_keep_out_who_reaches_a_quorum(
    kind: str, timeout: float | None
) -> None:
    """Whether each of them waits for long, or calls again and again."""
    make = KINDS["write" if kind == "read" else kind]

    async def ask(locks: asynclock.LockManager) -> None:
        while True:
            with contextlib.suppress(asynclock.AsyncLockError):
                await (await make(locks).acquire(timeout=timeout)).release()
            await asyncio.sleep(0.01)

    async with clients(16) as (nodes, (other, *minority), (_, *ways)):
        nodes[2].kill()
        with contextlib.ExitStack() as stack:
            for _, way, _ in ways:
                stack.enter_context(cut_off(way))
            tasks = [asyncio.create_task(ask(locks)) for locks in minority]
            await asyncio.sleep(2 * PATIENCE)
            for _ in range(5):
                began = now()
                lease = await KINDS[kind](other).acquire(timeout=10.0)
                assert now() - began < 0.2
                await asyncio.sleep(0.1)
                await lease.release()
                await asyncio.sleep(0.1)
            await call_off(*tasks)


@in_virtual_time
async def test_who_is_back_has_its_old_place() -> None:
    async def _in_order(name: str, locks: asynclock.LockManager) -> float:
        async with locks.lock("a"):
            await asyncio.sleep(0.05)
            return now()

    async with clients(3) as (nodes, (holder, first, second), ways):
        nodes[2].kill()
        lease = await holder.lock("a").acquire()
        waiting = asyncio.create_task(_in_order("first", first))
        await asyncio.sleep(0.1)
        with cut_off(ways[1][1]):
            await asyncio.sleep(1.7 * PATIENCE)
            queue = await nodes[0].command("EXISTS", "asynclock:a:#queue")
            assert not queue, "it has left, though its ticket would not have died yet"
            await asyncio.sleep(1.3 * PATIENCE)
            later = asyncio.create_task(_in_order("second", second))
            await asyncio.sleep(0.1)
        await until(lambda: first.nodes()[1].state == "up")
        await asyncio.sleep(PATIENCE / 2)
        await lease.release()
        assert await waiting < await later
