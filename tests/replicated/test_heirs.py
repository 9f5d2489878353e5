"""With acks="all" a promoted replica serves at once those who know that it has every grant."""

from __future__ import annotations

import contextlib
import time
from typing import Literal

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes import sentinel
from asynclock._nodes.sentinel import SentinelNode
from asynclock._nodes.watched import CONFIRMED
from asynclock.testing import LocalServer, SentinelGroup, until
from tests.replicated.conftest import Connect
from tests.waiting import refused

Acks = int | Literal["all"]
LONG = 90.0
"""A max_ttl that no test waits out."""
MARK = "asynclock::#primary"


def node_of(locks: asynclock.LockManager) -> SentinelNode:
    (node,) = locks._engine.multiplexer.nodes
    assert isinstance(node, SentinelNode)
    return node


async def newcomer(
    service: SentinelGroup, connect: Connect, acks: Acks, max_ttl: float = LONG
) -> asynclock.LockManager:
    """A client that has just met the primary, and waits."""
    locks = connect(*service.addresses, acks=acks, ttl=max_ttl / 2, max_ttl=max_ttl)
    await locks.ready()
    await until(lambda: state(locks, "quarantined"), "the primary is met")
    return locks


async def at_home(service: SentinelGroup, connect: Connect, acks: Acks) -> asynclock.LockManager:
    """A client that need not wait any more, as if it had known the primary for long."""
    locks = await newcomer(service, connect, acks)
    node_of(locks).trust.votes_from = node_of(locks).trust.renews_from = 0.0
    return locks


async def state(locks: asynclock.LockManager, wanted: str) -> bool:
    return locks.nodes()[0].state == wanted


async def believes(locks: asynclock.LockManager, *servers: LocalServer) -> bool:
    found = [await server.command("INFO", "server") for server in servers]
    runs = {info.partition("run_id:")[2][:40] for info in found}
    return runs <= set(node_of(locks)._heirs._looks._believed_until)


async def sees_the_same(locks: asynclock.LockManager, believing: asynclock.LockManager) -> None:
    """Wait for two looks like those because of which the other client believes somebody."""
    looks, others = node_of(locks)._heirs._looks, node_of(believing)._heirs._looks
    wanted = others._base
    assert wanted is not None
    bases = {id(wanted): wanted}

    async def twice() -> bool:
        base = looks._base
        if base is not None and base.mark == wanted.mark:
            bases[id(base)] = base
        return len(bases) > 2

    await until(twice, "looks that prove somebody to a client for whom the primary votes")


def name_of(server: LocalServer) -> str:
    return f"{server.host}:{server.port}"


async def roster(service: SentinelGroup) -> str:
    """The roster in the mark of the primary; "" without one."""
    words = (await service.primary.command("GET", MARK)).split(" ")
    return words[3] if len(words) > 3 else ""


async def forever_quarantined(locks: asynclock.LockManager) -> bool:
    """Whether the client waits for the longest leases to end."""
    return node_of(locks).trust.votes_from - _clock.now() > LONG / 2


async def granted(locks: asynclock.LockManager, name: str) -> bool:
    with contextlib.suppress(asynclock.QuorumUnavailableError):
        return await locks.lock(name).try_acquire() is not None
    return False


async def test_an_heir_serves_at_once_those_who_saw_that_it_has_every_grant(
    service: SentinelGroup, connect: Connect
) -> None:
    locks = await at_home(service, connect, "all")
    held = await (await at_home(service, connect, "all")).lock("held").acquire(timeout=20)
    await until(lambda: believes(locks, *service.replicas), "both replicas are believed")
    began = time.monotonic()
    await service.fail_over()
    assert await locks.lock("a").acquire(timeout=LONG)
    assert time.monotonic() - began < LONG / 2
    assert await refused(locks.lock("held"))
    assert held.held


async def test_an_heir_lets_nobody_in_before_the_old_primary_is_out_of_use(
    service: SentinelGroup, connect: Connect
) -> None:
    locks = await at_home(service, connect, "all")
    await until(lambda: believes(locks, *service.replicas), "both replicas are believed")
    old = service.primary
    await service.fail_over()
    await until(lambda: met(locks, service), "the heir is met")
    trust = node_of(locks).trust
    since = (await service.primary.command("GET", MARK)).split(" ")[1]
    assert service.primary is not old
    now = float((await service.primary.command("TIME"))[0])
    left = trust.votes_from - _clock.now()
    assert CONFIRMED - 1.5 <= left + now - int(since) / 1e6 <= CONFIRMED + 1.5


async def met(locks: asynclock.LockManager, service: SentinelGroup) -> bool:
    facts = node_of(locks).trust.facts
    return facts is not None and facts.run_id in await service.primary.command("INFO", "server")


@pytest.mark.parametrize("acks", [1, "all"])
async def test_an_heir_waits_for_anybody_else(
    service: SentinelGroup, connect: Connect, acks: Acks
) -> None:
    """Here for one with fewer acknowledgements, and for one that never met the primary before."""
    if acks == 1:
        locks = await at_home(service, connect, acks)
        await until(lambda: granted(locks, "a"), "it is granted at once")
        assert await roster(service) == ""
        await service.fail_over()
    else:
        first = await at_home(service, connect, acks)
        quarantined = await newcomer(service, connect, acks)
        await until(lambda: believes(first, *service.replicas), "both replicas are believed")
        await sees_the_same(quarantined, first)
        assert not node_of(quarantined)._heirs._looks._believed_until
        await service.fail_over()
        locks = await newcomer(service, connect, acks)
    await until(lambda: forever_quarantined(locks), "the heir waits for a max_ttl")
    assert not await granted(locks, "b")


async def test_a_dead_replica_stops_locks_until_nobody_can_believe_it(
    service: SentinelGroup, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinel, "MARGIN", 2.0)
    locks = await at_home(service, connect, "all")
    await until(lambda: believes(locks, *service.replicas), "both replicas are believed")
    dead, other = service.replicas
    await dead.kill()
    began = time.monotonic()
    await until(lambda: leaves(service, dead), "the dead one begins to leave")
    assert not await granted(locks, "a")
    await until(lambda: granted(locks, "a"), "locks go on without it")
    assert time.monotonic() - began >= 1.5 + 2.0
    assert (await roster(service)).endswith(f";{name_of(other)}")
    await dead.restart()
    await until(lambda: lists(service, dead), "it is back, and named again")
    await until(lambda: believes(locks, dead), "and believed")


async def leaves(service: SentinelGroup, server: LocalServer) -> bool:
    return f"-{name_of(server)}" in await roster(service)


async def lists(service: SentinelGroup, server: LocalServer) -> bool:
    return name_of(server) in (await roster(service)).partition(";")[2].split(";")[1].split(",")


async def test_a_replica_that_was_counted_out_and_returns_is_not_believed(
    service: SentinelGroup, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data are the same as if nothing had happened since."""
    monkeypatch.setattr(sentinel, "MARGIN", 2.0)
    locks = await at_home(service, connect, "all")
    await until(lambda: believes(locks, *service.replicas), "both replicas are believed")
    stale, other = service.replicas
    await stale.freeze()
    await service.primary.command("CLIENT", "KILL", "TYPE", "replica")
    await until(lambda: granted(locks, "missed"), "locks go on without it")
    assert name_of(stale) not in await roster(service)
    old = service.primary
    await old.kill()
    await other.kill()
    await stale.thaw()
    await service.failed_over(old)
    assert service.primary is stale
    await until(lambda: forever_quarantined(locks), "the heir waits for a max_ttl")
    assert await stale.command("GET", "asynclock:missed") is None


async def test_a_replica_that_restarted_is_not_believed(
    service: SentinelGroup, connect: Connect
) -> None:
    """It may have come back with older data."""
    locks = await at_home(service, connect, "all")
    heir, other = service.replicas
    await until(lambda: believes(locks, heir, other), "both replicas are believed")
    await other.command("CONFIG", "SET", "replica-priority", "0")
    node_of(locks)._heirs.look = lambda *_: None  # type: ignore[method-assign]  # no later look
    await heir.restart()
    old = service.primary
    await old.kill()
    await service.failed_over(old)
    assert service.primary is heir
    await until(lambda: forever_quarantined(locks), "the heir waits for a max_ttl")
    await other.command("CONFIG", "SET", "replica-priority", "100")


async def test_who_asks_for_fewer_acknowledgements_closes_the_roster_and_waits(
    service: SentinelGroup, connect: Connect
) -> None:
    locks = await at_home(service, connect, "all")
    await until(lambda: believes(locks, *service.replicas), "both replicas are believed")
    fewer = await newcomer(service, connect, 1)
    await until(lambda: forever_quarantined(fewer), "it waits until no look can count any more")
    text = await roster(service)
    assert text.startswith("-")
    assert await granted(locks, "a")
    assert await roster(service) == text, "who has seen it open still needs each replica"


async def test_a_primary_whose_mark_is_gone_is_left(
    service: SentinelGroup, connect: Connect
) -> None:
    locks = await at_home(service, connect, "all")
    await until(lambda: believes(locks, *service.replicas), "both replicas are believed")
    await service.primary.command("DEL", MARK)
    assert not await granted(locks, "a")
    await until(lambda: forever_quarantined(locks), "it counts as new, like any unknown process")
    assert await roster(service)


async def test_where_a_dead_replica_would_stop_locks_for_a_max_ttl_all_is_as_before(
    service: SentinelGroup, connect: Connect
) -> None:
    await newcomer(service, connect, "all", max_ttl=9)
    assert await roster(service) == ""
