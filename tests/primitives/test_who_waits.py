"""Inspections show the waiters of a name, in all processes and in order."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pytest

import asynclock
from tests.contract.faces import Face
from tests.contract.matrix import faces
from tests.waiting import call_off, until

Locks = asynclock.LockManager

face = faces(("3-memory", "5-dead", "cluster-tcp-up"))


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
        tasks.append(asyncio.ensure_future(sort.acquire(locks)))
        await agreed(LABELS[:number])
    tasks.pop(1).cancel()
    await agreed((LABELS[0], LABELS[2]))
    await call_off(*tasks)
