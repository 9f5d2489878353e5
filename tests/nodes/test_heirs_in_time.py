"""Whom a promoted replica serves at once, and for whom it waits, in virtual time.

With acks="all" a client that saw that a replica had every grant need not wait for it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from tests.engine.virtual_nodes import seconds_until
from tests.nodes.virtual_servers import Server, VirtualService, played_on
from tests.tables.inside import now
from tests.waiting import until

MARK = "asynclock::#primary"
SETTINGS: dict[str, Any] = {"ttl": 50.0, "max_ttl": 100.0, "node_timeout": 1.0}
CONFIRMED = 2.0
"""Seconds for which others may use an old primary (docs/guarantees.md)."""
SILENCE = 9.0
"""Seconds until locks go on without a replica: one until it counts as dead, and a margin."""


class Group:
    """A primary with two replicas that have everything, and a client at home there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.service = VirtualService(patch, servers=3)
        self.primary, *self.replicas = self.service.servers
        self.dead: set[Server] = set()
        self.epoch = 1
        self.tell()

    def tell(self) -> None:
        """Let the primary and its Sentinels tell of the replicas as they are."""
        others = [one for one in self.service.servers if one is not self.primary]
        alive = [one for one in others if one not in self.dead]
        info: dict[str, object] = {"connected_slaves": len(alive), "master_repl_offset": 100}
        for number, one in enumerate(alive):
            place = f"ip={one.host},port={one.port}"
            info[f"slave{number}"] = f"{place},state=online,offset=100,lag=0"
        self.primary.info = info
        self.service.acknowledge(len(alive))
        flags = {one: "slave,s_down" if one in self.dead else "slave" for one in others}
        self.service.name(self.primary, epoch=self.epoch, replicas=flags)

    def die(self, replica: Server) -> None:
        self.dead.add(replica)
        self.tell()

    def copy(self, replica: Server) -> None:
        """Let a replica have all that the primary has."""
        replica.keys.clear()
        replica.keys.values.update(self.primary.keys.values)

    def promote(self, heir: Server) -> None:
        self.primary.kill()
        self.dead.add(self.primary)
        self.dead.discard(heir)
        self.primary, self.epoch = heir, self.epoch + 1
        self.tell()

    def connect(self, **settings: Any) -> asynclock.LockManager:
        return asynclock.connect(self.service.url, **{**SETTINGS, "acks": "all", **settings})

    async def roster(self) -> str:
        """Return the roster in the mark of the primary; "" without one."""
        return " ".join((await self.primary.command("GET", MARK)).split(" ")[3:])

    async def at_home(self, locks: asynclock.LockManager) -> None:
        """Wait until a client need not wait any more, and has looked at the primary."""
        await until(lambda: locks.nodes()[0].state == "up", timeout=300, every=0.5)
        await asyncio.sleep(5)


async def granted(locks: asynclock.LockManager) -> bool:
    try:
        async with locks.lock("a", timeout=0.5):
            return True
    except asynclock.AsyncLockError:
        return False


def nothing(_group: Group) -> None: ...


def restarts(group: Group) -> None:
    """The heir restarts: it may have come back with older data."""
    group.replicas[0].restart(keep_data=True)
    group.replicas[0].born_ago(3600)


def loses_the_mark(group: Group) -> None:
    group.replicas[0].keys.values.pop(MARK.encode(), None)


def is_replaced_twice(group: Group) -> None:
    """Another server was the primary in between."""
    group.epoch += 1


@pytest.mark.parametrize(
    ("fault", "serves"),
    [(nothing, True), (restarts, False), (loses_the_mark, False), (is_replaced_twice, False)],
)
@played_on(Group)
async def test_an_heir_serves_those_who_saw_that_it_has_every_grant(
    group: Group, caplog: pytest.LogCaptureFixture, fault: Callable[[Group], None], *, serves: bool
) -> None:
    """But nobody before the old primary is out of use."""
    caplog.set_level(logging.INFO, "asynclock.nodes")
    heir = group.replicas[0]
    async with group.connect() as locks:
        await group.at_home(locks)
        held = await locks.lock("held").acquire()
        assert (await group.roster()).endswith(";9;p1:6379,p2:6379")
        assert "an heir may serve at once; a dead replica stops locks for 9 s" in caplog.text
        group.copy(heir)
        fault(group)
        group.promote(heir)
        began = now()
        if serves:
            async with locks.lock("a", timeout=50):
                assert CONFIRMED - 0.5 <= now() - began < CONFIRMED + 3
            async with group.connect(restart_guard=False) as others:
                assert await others.lock("held").try_acquire() is None
            assert held.held
        else:
            await until(lambda: locks.nodes()[0].state == "quarantined")
            assert locks.nodes()[0].votes_in > 50
            assert not await granted(locks)


@pytest.mark.parametrize("acks", [1, "all"])
@played_on(Group)
async def test_an_heir_waits_for_anybody_else(group: Group, acks: Any) -> None:
    """For one with fewer acknowledgements, and for one that never met the primary before."""
    async with group.connect(acks=acks) as first:
        await group.at_home(first)
        assert bool(await group.roster()) is (acks == "all")
        group.copy(group.replicas[0])
        group.promote(group.replicas[0])
        locks = first if acks == 1 else group.connect()
        await locks.ready()
        await until(lambda: locks.nodes()[0].state == "quarantined")
        assert locks.nodes()[0].votes_in > 50
        await locks.aclose()


@pytest.mark.parametrize("returns", ["alive", "promoted"])
@played_on(Group)
async def test_locks_wait_until_nobody_believes_a_dead_replica(group: Group, returns: str) -> None:
    """When it is back it is listed again. Promoted with its old data, it is not believed."""
    dead, other = group.replicas
    async with group.connect() as locks:
        await group.at_home(locks)
        group.copy(dead)
        group.die(dead)
        await until(lambda: leaves(group, dead))
        assert not await granted(locks)
        assert SILENCE - 2 <= await seconds_until(lambda: granted(locks)) <= SILENCE + 2
        assert (await group.roster()).endswith(f";{other.host}:{other.port}")
        if returns == "alive":
            group.dead.clear()
            group.tell()
            await until(lambda: lists(group, dead), timeout=60)
            assert await granted(locks)
        else:
            group.promote(dead)
            await until(lambda: locks.nodes()[0].state == "quarantined")
            assert locks.nodes()[0].votes_in > 50


async def leaves(group: Group, server: Server) -> bool:
    return f"-{server.host}:{server.port}" in await group.roster()


async def lists(group: Group, server: Server) -> bool:
    return f"{server.host}:{server.port}" in (await group.roster()).split(";")[2].split(",")


@played_on(Group)
async def test_a_client_with_fewer_acks_closes_the_roster_and_waits(group: Group) -> None:
    """Those who have seen it open still need each replica."""
    async with group.connect() as locks:
        await group.at_home(locks)
        async with group.connect(acks=1) as fewer:
            await fewer.ready()
            await until(lambda: fewer.nodes()[0].state == "quarantined")
            assert fewer.nodes()[0].votes_in > 5
            text = await group.roster()
            assert text.startswith("-")
            assert await granted(locks)
            assert await group.roster() == text


@played_on(Group)
async def test_a_primary_whose_mark_is_gone_is_left(group: Group) -> None:
    """It counts as new, like any unknown process."""
    async with group.connect() as locks:
        await group.at_home(locks)
        await group.primary.command("DEL", MARK)
        assert not await granted(locks)
        await until(lambda: locks.nodes()[0].state == "quarantined")
        assert locks.nodes()[0].votes_in > 50
        assert await group.roster()
