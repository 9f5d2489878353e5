"""One call of `acquire`, of whichever primitive: awaited or entered, and left only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock.testing import LocalServer
from tests import patient

CALLS: dict[str, Callable[[asynclock.LockManager], Any]] = {
    "lock": lambda locks: locks.lock("a").acquire(timeout=10),
    "reentrant": lambda locks: locks.reentrant_lock("a").acquire(timeout=10),
    "multi": lambda locks: locks.multi_lock("a", "b").acquire(timeout=10),
    "election": lambda locks: locks.election("a").campaign("me", timeout=10),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_is_made_when_it_is_used(
    asynclock_nodes: list[LocalServer], call: Callable[[asynclock.LockManager], Any]
) -> None:
    urls = [node.url for node in asynclock_nodes]
    async with patient.connect(*urls, restart_guard=False) as locks:
        unused, awaited, entered = call(locks), call(locks), call(locks)
        assert locks.leases() == ()  # not made yet
        lease = await awaited
        assert lease.held
        await (lease.resign if isinstance(lease, asynclock.Term) else lease.release)()
        async with entered as lease:
            assert lease.held
        assert not lease.held
        assert locks.leases() == ()
        for over in (entered, unused):
            with pytest.raises(RuntimeError, match="never entered"):
                await over.__aexit__(None, None, None)
        unused.close()


async def test_a_call_is_used_once(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with patient.connect(asynclock_nodes[0].url, restart_guard=False) as locks:
        call = locks.semaphore("a", 2).acquire(timeout=10)
        async with call as lease:
            with pytest.raises(RuntimeError, match="cannot reuse"):
                await call.__aenter__()
            assert locks.leases() == (lease,)
        assert locks.leases() == ()
        with pytest.raises(RuntimeError, match="cannot reuse"):
            async with call:
                pass


class Member(str):
    """Like a member of a `str, Enum`: its printed form differs from its value."""

    __slots__ = ()

    def __format__(self, _spec: str) -> str:
        return f"Names.{self.upper()}"


async def test_a_name_is_the_text_whatever_its_type_prints(
    asynclock_nodes: list[LocalServer],
) -> None:
    node = asynclock_nodes[0]
    async with patient.connect(node.url, restart_guard=False, prefix="a:{") as locks:
        for name in (Member("orders"), "orders"):
            async with locks.lock(name) as lease:
                assert type(lease.name) is str
                assert await node.command("EXISTS", "a:{orders}")
