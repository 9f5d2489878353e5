"""Inspections show the waiters of a name, in all processes and in order."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

import asynclock
from tests.contract.faces import Face
from tests.contract.matrix import faces
from tests.engine.test_queue import line_up
from tests.engine.virtual_nodes import Nodes, virtual_single
from tests.waiting import until

Locks = asynclock.LockManager

face = faces(("1-up", "3-memory", "5-dead", "cluster-tcp-up"))


class Sort(NamedTuple):
    """How one kind of primitive is acquired, and inspected."""

    acquire: Callable[[Locks], Awaitable[Any]]
    inspect: Callable[[Locks], Awaitable[asynclock.Inspection]]


SORTS = {
    "lock": Sort(lambda locks: locks.lock("a").acquire(), lambda locks: locks.inspect("a")),
    "fair": Sort(
        lambda locks: locks.fair_lock("a").acquire(), lambda locks: locks.fair_lock("a").inspect()
    ),
    "semaphore": Sort(
        lambda locks: locks.semaphore("a", 1).acquire(),
        lambda locks: locks.semaphore("a", 1).inspect(),
    ),
    "several": Sort(
        lambda locks: locks.semaphore("a", 2).several(2).acquire(),
        lambda locks: locks.semaphore("a", 2).inspect(),
    ),
    "write": Sort(
        lambda locks: locks.rwlock("a").write().acquire(), lambda locks: locks.rwlock("a").inspect()
    ),
    "election": Sort(
        lambda locks: locks.election("a").campaign(), lambda locks: locks.election("a").inspect()
    ),
    "several names": Sort(
        lambda locks: locks.lock("a").acquire(), lambda locks: locks.multi_lock("a", "b").inspect()
    ),
}
LABELS = ("web-1:1", "web-2:2", "web-3:3")


async def acquire(sort: Sort, locks: Locks) -> Any:
    return await sort.acquire(locks)


def labels(found: asynclock.Inspection) -> tuple[str | None, ...]:
    return tuple(waiter.label for waiter in found.waiting)


@pytest.mark.parametrize("kind", SORTS)
async def test_in_the_order_in_which_they_asked(
    face: Face, connecting: Callable[..., Locks], kind: str
) -> None:
    settings = {"restart_guard": False, "ttl": 60, "max_ttl": 60, **face.options}
    here, *others = (
        connecting(*face.addresses, label=label, **settings) for label in ("here:0", *LABELS)
    )
    sort = SORTS[kind]
    await sort.acquire(here)
    assert (await sort.inspect(here)).waiting == ()
    tasks: list[asyncio.Future[Any]] = []

    async def agreed(wanted: Sequence[str]) -> None:
        # A place whose waiter is kept from the CPU for two seconds is gone until it asks again.
        async def told() -> bool:
            found = await sort.inspect(here)
            listed = [one async for one in here.inspect_all()]
            parts = [part for part in (found, *found.parts, *listed) if "a" in part.name]
            return len(listed) > 0 and all(labels(part) == tuple(wanted) for part in parts)

        await until(told, f"{wanted} wait")

    for number, locks in enumerate(others, 1):
        tasks.append(asyncio.ensure_future(acquire(sort, locks)))
        await agreed(LABELS[:number])
    tasks.pop(1).cancel()
    await agreed((LABELS[0], LABELS[2]))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("held", "wanted"), [("write", ["r1", "w1", "w2", "w3"]), ("read", ["w1", "r1", "w2", "w3"])]
)
@virtual_single
async def test_readers_have_one_place_among_all_writers(
    on: Nodes, held: str, wanted: list[str]
) -> None:
    """A ticket whose key has expired is the place of a waiter that died."""

    def side(locks: Locks, kind: str) -> Any:
        rwlock = locks.rwlock("a")
        return rwlock.write() if kind.startswith("w") else rwlock.read()

    async with AsyncExitStack() as stack:
        lease = await side(on.locks, held).acquire()
        tasks = []
        for label in ("w1", "w2", "r1", "w3"):
            locks = await stack.enter_async_context(on.connect(label=label))
            tasks.append(await line_up(side(locks, label), locks))
        for place, dead in ((2, "dead-writer"), (4e15, "dead-reader")):
            await on.nodes[0].command("ZADD", "asynclock:a:#phases", place, dead)
        found = await on.locks.rwlock("a").inspect()
        assert list(labels(found)) == wanted
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await lease.release()
