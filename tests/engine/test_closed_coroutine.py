"""A coroutine that is closed, as one is whose task was dropped, leaves its place and its lease."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import asynclock
from asynclock.testing import LocalServer, lose
from asynclock.testing import until as found
from tests import patient
from tests.engine.kinds import LOCKS as ALL
from tests.tables.inside import names_in_use
from tests.waiting import PATIENCE, until

BLOCKING = "_asyncio_future_blocking"
"""What a task sets to False when it begins to wait for a future."""
Body = Callable[[asynclock.LockManager], Coroutine[Any, Any, None]]
LOCKS = {kind: ALL[kind] for kind in ("lock", "reentrant_lock", "multi_lock")}
LOCKS["name by name"] = ALL["multi_lock"]


def connect(nodes: list[LocalServer], kind: str = "", **settings: Any) -> asynclock.LockManager:
    if kind == "name by name":  # as on Cluster
        settings["prefix"] = "asynclock:{"
    return patient.connect_to(nodes, **{"ttl": 60, **settings})


async def nothing_left(locks: asynclock.LockManager, nodes: list[LocalServer]) -> None:
    async def free() -> bool:
        keys = [key for node in nodes for key in await node.command("KEYS", "*")]
        return all(key.endswith((":#fence", ":#witness")) for key in keys)

    await found(free, "no key is left")
    assert locks.leases() == ()
    assert locks.statistics().waiting == 0
    assert names_in_use(locks) == []


@pytest.mark.parametrize("kind", LOCKS)
@pytest.mark.parametrize("given", [False, True])
async def test_closed_while_it_waits_in_the_local_queue(
    asynclock_nodes: list[LocalServer], kind: str, given: bool
) -> None:
    """`given`: it was its turn already, but the coroutine had not run since."""
    async with connect(asynclock_nodes, kind) as locks:
        holder = await asyncio.create_task(LOCKS[kind](locks).acquire())
        waiting = LOCKS[kind](locks).acquire(timeout=50)
        waiting.send(None)
        next_one = asyncio.create_task(LOCKS[kind](locks).acquire(timeout=10))
        await until(lambda: locks.statistics().waiting == 2, "both wait")
        if given:
            await holder.release()
        waiting.close()
        if not given:
            await holder.release()
        lease = await next_one
        assert lease.held
        await lease.release()
        await nothing_left(locks, asynclock_nodes)


async def downgraded(locks: asynclock.LockManager) -> None:
    lock = locks.rwlock("a")
    async with lock.write() as writer, await lock.downgrade(writer):
        pass


async def upgraded(locks: asynclock.LockManager) -> None:
    lock = locks.rwlock("a")
    async with lock.read() as reader, lock.upgrade(reader):
        pass


def entered(make: Callable[[asynclock.LockManager], Any]) -> Body:
    async def body(locks: asynclock.LockManager) -> None:
        async with make(locks):
            await asyncio.sleep(0)

    return body


BODIES: dict[str, Body] = {
    **{kind: entered(make) for kind, make in LOCKS.items()},
    "strict": entered(lambda locks: locks.lock("a", handoff="strict")),
    "fair": entered(lambda locks: locks.fair_lock("a")),
    "slot": entered(lambda locks: locks.semaphore("a", 1)),
    "several": entered(lambda locks: locks.semaphore("a", 2).several(2)),
    "read": entered(lambda locks: locks.rwlock("a").read()),
    "write": entered(lambda locks: locks.rwlock("a").write()),
    "campaign": entered(lambda locks: locks.election("a").campaign()),
    "downgrade": downgraded,
    "upgrade": upgraded,
}


async def driven(coroutine: Any, steps: int, patience: float = 0.05) -> bool:
    """Drive a coroutine; return whether it made this many steps before it ended or waited long."""
    for _ in range(steps):
        try:
            awaited = coroutine.send(None)
        except StopIteration:
            return False
        if awaited is not None:
            setattr(awaited, BLOCKING, False)
            if not (await asyncio.wait([awaited], timeout=patience))[0]:
                return False
    return True


WAITS = ("lock", "multi_lock", "name by name", "read")
"""Of those whose calls wait alike, one."""


@pytest.mark.parametrize(
    ("kind", "taken"), [*((kind, False) for kind in BODIES), *((kind, True) for kind in WAITS)]
)
async def test_closed_in_another_thread_in_any_step(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch, kind: str, taken: bool
) -> None:
    """As the garbage collector may do it: that thread sends nothing. `taken`: by another client."""
    threads: set[int] = set()
    send = socket.socket.send

    def noted(sock: socket.socket, data: Any, *flags: int) -> int:
        if data != b"\0":  # with which asyncio wakes the loop
            threads.add(threading.get_ident())
        return send(sock, data, *flags)

    monkeypatch.setattr(socket.socket, "send", noted)
    async with connect(asynclock_nodes, kind) as locks, connect(asynclock_nodes, kind) as others:
        rival = BODIES["read" if kind == "upgrade" else kind](others)
        while taken and not others.leases():
            await driven(rival, 1)
        asyncio.get_running_loop().set_debug(True)  # it refuses what another thread sends
        more, steps = True, 1
        while more:
            coroutine = BODIES[kind](locks)
            patience = 0.5 if taken else PATIENCE
            more, steps = await driven(coroutine, steps, patience), steps + 1
            await asyncio.to_thread(coroutine.close)
            await until(lambda: not locks.leases() and not locks.statistics().waiting)
        assert steps > 2
        await driven(rival, 30, PATIENCE)  # to its end
        await nothing_left(locks, asynclock_nodes)
    assert threads == {threading.get_ident()}


async def test_closed_while_it_takes_a_lease_over(asynclock_nodes: list[LocalServer]) -> None:
    """It had the grant and asked for its fence; the next waiter of the process must not wait."""
    async with connect(asynclock_nodes) as locks:
        lock = locks.lock("a", handoff="strict")
        holder = await lock.acquire()
        taking = lock.acquire(timeout=50)
        turn = taking.send(None)
        next_one = asyncio.create_task(locks.lock("a").acquire(timeout=10))
        await until(lambda: locks.statistics().waiting == 2, "both wait")
        setattr(turn, BLOCKING, False)
        await holder.release()
        taking.send(None)
        taking.close()
        lease = await next_one
        assert lease.held
        await lease.release()
        await nothing_left(locks, asynclock_nodes)


@pytest.mark.parametrize("kind", LOCKS)
async def test_closed_in_another_thread_after_its_lease_ended(
    asynclock_nodes: list[LocalServer], kind: str
) -> None:
    """As the garbage collector does it, before the loop has noticed the end: nothing is sent."""
    async with connect(asynclock_nodes, kind, ttl=1.0, max_ttl=1.0) as locks:
        lease = await LOCKS[kind](locks).acquire()
        await lease.__aenter__()
        time.sleep(1.1)  # noqa: ASYNC251 (the loop must not notice the end of the lease)
        asyncio.get_running_loop().set_debug(True)  # it refuses what another thread sends
        leaving = lease.__aexit__(GeneratorExit, GeneratorExit(), None)
        with ThreadPoolExecutor(1) as pool, pytest.raises(StopIteration):
            pool.submit(leaving.send, None).result()
        await nothing_left(locks, asynclock_nodes)


@pytest.mark.parametrize("kind", LOCKS)
async def test_closed_in_another_thread_after_a_loss_interrupted_it(
    asynclock_nodes: list[LocalServer], kind: str
) -> None:
    """No event loop runs in that thread, so no task can be asked for."""
    async with connect(asynclock_nodes, kind) as locks:
        lease = await LOCKS[kind](locks).acquire()

        async def body() -> None:
            await lease.__aenter__()
            lose(lease)
            await asyncio.sleep(60)

        await asyncio.wait([task := asyncio.create_task(body())], timeout=10)
        assert task.cancelled()
        leaving = lease.__aexit__(GeneratorExit, GeneratorExit(), None)
        with ThreadPoolExecutor(1) as pool, pytest.raises(StopIteration):
            pool.submit(leaving.send, None).result()
        await nothing_left(locks, asynclock_nodes)


async def test_a_multi_lease_tells_whom_a_loss_interrupts(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with connect(asynclock_nodes) as locks, locks.multi_lock("a", "b") as lease:
        assert lease.leases[0].task is lease.task is asyncio.current_task()
