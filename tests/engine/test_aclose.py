"""`aclose` leaves nothing behind: no key, no connection, no task, however it is interrupted."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

import asynclock
from asynclock.testing import LocalServer, Replicated, until
from tests import patient
from tests.waiting import PATIENCE, becomes, call_off, go_through

Close = Callable[[asynclock.LockManager], Awaitable[None]]


async def in_a_cancelled_scope(locks: asynclock.LockManager) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await locks.aclose()


async def cancelled(locks: asynclock.LockManager, *, steps: tuple[int, ...]) -> None:
    closing = asyncio.create_task(locks.aclose())
    for pause in steps:
        for _ in range(pause):
            await asyncio.sleep(0)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def in_a_timeout(locks: asynclock.LockManager) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await locks.aclose()


@pytest.mark.parametrize(
    "close",
    [
        in_a_cancelled_scope,
        *(partial(cancelled, steps=steps) for steps in ((1,), (1, 1), (2, 1, 3))),
        in_a_timeout,
    ],
)
async def test_interrupted_it_leaves_nothing(
    asynclock_nodes: list[LocalServer], close: Close
) -> None:
    before = asyncio.all_tasks()
    locks = patient.connect(*(node.url for node in asynclock_nodes), restart_guard=False)
    lease = await locks.lock("a").acquire()
    await close(locks)
    assert asyncio.all_tasks() == before
    assert not lease.held
    for node in asynclock_nodes:
        assert await node.command("EXISTS", "asynclock:a") == 0
        # The server closes its side in a turn of its own.
        await becomes(partial(clients, node), 1, timeout=5)


async def clients(node: LocalServer) -> int:
    """Number of connections to a server, ours included."""
    return len((await node.command("CLIENT", "LIST")).splitlines())


async def test_what_a_given_up_acquire_may_have_got_is_given_back() -> None:
    """The grant waits for an acknowledgement that doesn't come, and the release waits behind it."""
    settings: dict[str, Any] = {"restart_guard": False, "node_timeout": 2.0, "ttl": 60.0}
    async with Replicated(1) as group:
        locks = patient.connect(*group.addresses, acks="all", max_ttl=60.0, **settings)
        async with locks:
            await go_through(locks.lock("warm", timeout=20))
            await group.replicas[0].freeze()
            trying = asyncio.create_task(locks.lock("a").acquire())

            async def granted() -> bool:
                return bool(await group.primary.command("EXISTS", "asynclock:a"))

            await until(granted, "the primary has granted")
            # Make the server block the connection for a second from now on.
            await call_off(trying)
        assert await group.primary.command("EXISTS", "asynclock:a", "asynclock:warm") == 0


async def test_a_silent_node_holds_up_no_close(asynclock_nodes: list[LocalServer]) -> None:
    urls = [node.url for node in asynclock_nodes]
    async with asyncio.timeout(PATIENCE):  # half of its ttl
        async with asynclock.connect(*urls, restart_guard=False, node_timeout=0.5, ttl=60) as locks:
            await locks.lock("a").acquire()
            await asynclock_nodes[0].freeze()
    await asynclock_nodes[0].thaw()
