"""Servers behind Sentinels that the test makes up, in virtual time; the real: tests/replicated."""

import asyncio
import logging
from typing import Any

import pytest

import asynclock
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import seconds_until
from tests.nodes.virtual_servers import VirtualService, played_on
from tests.tables.inside import now
from tests.waiting import go_through, until

KEY, MARK = "asynclock:a", "asynclock::#primary"
POLL, CONFIRMED = 1.0, 2.0
"""Seconds between two looks at the Sentinels, and for which their word counts (guarantees.md)."""
HEIRS: dict[str, Any] = {"acks": "all", "ttl": 50.0, "max_ttl": 100.0}
"""Settings with which an heir may serve at once."""


def connect(service: VirtualService, **settings: Any) -> asynclock.LockManager:
    usual = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0, "restart_guard": False}
    return asynclock.connect(service.url, **{**usual, **settings})


def tasks() -> list[str]:
    return [name for task in asyncio.all_tasks() if "asynclock" in (name := task.get_name())]


def noting(service: VirtualService) -> list[float]:
    """Return the moments at which the first Sentinel is asked, as they come."""
    polls: list[float] = []
    sentinel = service.sentinels[0]
    tells = sentinel.instead[b"SENTINEL"]

    def told(words: Any) -> Any:
        polls.append(now() - sentinel.way.seconds)
        return tells(words)

    sentinel.instead[b"SENTINEL"] = told
    return polls


@played_on(VirtualService)
async def test_the_sentinels_primary_is_used_and_nobody_left_behind(
    service: VirtualService,
) -> None:
    """Its grants need no acknowledgement, so they wait for none."""
    async with connect(service) as locks:
        async with locks.lock("a") as lease:
            assert await service.servers[0].command("GET", KEY) == lease.owner
        (health,) = locks.nodes()
        assert (health.state, health.role) == ("up", "master")
        mark = await service.servers[0].command("GET", MARK)
        assert mark.split()[0] == f"{service.servers[0].run_id}.1"
        assert service.servers[0].asked_for("WAIT") == []
        await asyncio.gather(*(locks.lock(name).acquire() for name in "bc"))
        assert service.servers[0].operations("batch"), "several names share a command"
    assert tasks() == []
    assert [one.connections for one in (*service.sentinels, *service.servers)] == [0] * 5


@played_on(VirtualService)
async def test_another_primary_is_followed_within_a_poll(
    service: VirtualService, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that is named again: in between, another one granted leases."""
    old, new = service.servers
    with caplog.at_level(logging.INFO, "asynclock.nodes"):
        async with connect(service) as locks:
            await go_through(locks.lock("a"))
            for epoch, primary in ((2, new), (3, old)):
                service.name(primary, epoch=epoch)

                async def there(primary: Any = primary) -> bool:
                    await asyncio.sleep(0.01)
                    lease = await locks.lock("a").acquire(timeout=10)
                    async with lease:
                        return await primary.command("GET", KEY) == lease.owner

                assert await seconds_until(there) < POLL + 0.1
                await asyncio.sleep(3 * POLL)
                assert locks.nodes()[0].state == "up"
                before = len(primary.dialled)
                await asyncio.sleep(3 * POLL)
                assert len(primary.dialled) == before, "it is not left again"
            service.name(old, epoch=4)
            await seconds_until(lambda: len(old.dialled) > before, timeout=POLL + 0.1)
    said = [record.message for record in caplog.records if "the primary is" in record.message]
    assert [words.rpartition(" ")[2] for words in said][:3] == ["p0:6379", "p1:6379", "p0:6379"]


@played_on(VirtualService)
async def test_sentinels_that_fail_a_moment_cost_no_confirmation(service: VirtualService) -> None:
    """They are asked again soon, and once they answer no more often than before."""
    polls = noting(service)
    async with connect(service) as locks:
        await go_through(locks.lock("a"))
        for _ in range(5):
            for other in service.sentinels[1:]:
                other.primary = None
            await asyncio.sleep(1.8 * POLL)  # the confirmation before may be a poll old
            for other in service.sentinels[1:]:
                other.primary = service.servers[0]
            assert await seconds_until(lambda: locks.nodes()[0].state == "up") < 0.15
            before = len(polls)
            await asyncio.sleep(4 * POLL)
            assert len(polls) - before <= 3 * 6
            assert locks.nodes()[0].state == "up"


@played_on(VirtualService)
async def test_a_sentinel_needs_no_guard_and_has_one_node_timeout(service: VirtualService) -> None:
    """It may have started a moment ago, is no node of the fleet, and knows no script."""
    for sentinel in service.sentinels:
        sentinel.born_ago(0)
    async with connect(service, restart_guard=True, node_timeout=0.25, max_ttl=20) as locks:
        await until(lambda: locks.nodes()[0].state in ("up", "quarantined"))
        asked = {words[0] for one in service.sentinels for words in one.asked}
        assert asked == {b"HELLO", b"SENTINEL"}
        for sentinel in service.sentinels:
            sentinel.freeze()
        assert await seconds_until(lambda: locks.nodes()[0].state == "down") < CONFIRMED + 0.3


@played_on(VirtualService)
async def test_a_new_primary_extends_nothing_while_the_old_may_grant(
    service: VirtualService,
) -> None:
    """It has the lease, but others may still be granted the name by the old primary."""
    old, heir = service.servers
    async with connect(service, acks="all", restart_guard=True, ttl=9, max_ttl=9) as locks:
        await until(lambda: locks.nodes()[0].state == "up", timeout=60, every=0.1)
        lease = await locks.lock("a", ttl=9, renew=False).acquire()
        heir.keys.values.update(old.keys.values)
        heir.keys.expiries.update(old.keys.expiries)
        service.name(heir, epoch=2, replicas={old: "slave"})
        await until(lambda: heir.asked_for("EVALSHA"), "its mark is left", every=0.001)
        marked = now()
        while now() < marked + CONFIRMED - 0.05:
            with pytest.raises((asynclock.QuorumUnavailableError, asynclock.LeaseLostError)):
                await lease.extend()
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        assert lease.held
        await lease.extend()


# ---- replicas
@pytest.mark.parametrize(("flags", "known"), [("slave,s_down", True), (None, False)])
@played_on(VirtualService)
async def test_a_replica_that_the_sentinels_know_may_come_back(
    service: VirtualService, flags: str | None, known: bool
) -> None:
    service.acknowledge(0)
    replicas = {service.servers[1]: flags} if flags else {}
    service.name(service.servers[0], epoch=1, replicas=replicas)
    wanted = asynclock.QuorumUnavailableError if known else asynclock.ConfigurationError
    async with connect(service, acks=1) as locks:
        with pytest.raises(wanted):
            await locks.lock("a").acquire(timeout=3)


# ---- heirs
@pytest.mark.parametrize("why", ["too slow", "another came first"])
@played_on(VirtualService)
async def test_where_an_heir_waits_no_roster_is_begun(
    service: VirtualService, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """A dead replica would stop locks for too long, or grants of others do not wait for it."""
    caplog.set_level(logging.INFO, "asynclock.nodes")
    settings = {"acks": "all", "ttl": 9, "max_ttl": 9} if why == "too slow" else HEIRS
    async with connect(service, acks=1 if why != "too slow" else 0) as others:
        if why != "too slow":
            await go_through(others.lock("a"))
        async with connect(service, **settings) as locks, locks.lock("b", timeout=5):
            assert len((await service.servers[0].command("GET", MARK)).split()) == 3
    assert any(one.message.endswith("an heir waits for max_ttl") for one in caplog.records)
    assert not any("may serve at once" in one.message for one in caplog.records)


@pytest.mark.parametrize("acks", [0, 1])
@played_on(VirtualService)
async def test_a_client_that_keeps_no_roster_leaves_a_primary_with_an_open_one(
    service: VirtualService, acks: int
) -> None:
    primary = service.servers[0]
    async with connect(service, acks=acks) as locks:
        await go_through(locks.lock("a"))
        mark = await primary.command("GET", MARK)
        await asyncio.sleep(3)
        assert len(primary.dialled) == 1
        assert (await primary.command("GET", MARK)) == mark, "it begins no roster"
        await primary.command("SET", MARK, f"{mark} 3;9;p1:6379")
        assert await seconds_until(lambda: len(primary.dialled) == 2) < 1.5 * POLL
        await asyncio.sleep(5)
        assert (await primary.command("GET", MARK)).split()[3].startswith("-"), "it is closed"
        assert len(primary.dialled) == 2


@pytest.mark.parametrize("what", ["INFO", "mark"])
@played_on(VirtualService)
async def test_no_grant_counts_for_all_replicas_without_the_mark_that_names_them(
    service: VirtualService, what: str
) -> None:
    """Others may believe an heir that the grants did not wait for. No process: no roster."""
    primary = service.servers[0]
    full = ReplyError("OOM command not allowed when used memory > 'maxmemory'")
    if what == "INFO":
        primary.instead[b"INFO"] = lambda _words: ReplyError("NOPERM no right to INFO")
    else:
        primary.instead[b"EVALSHA"] = lambda words: (
            full if words[3] == MARK.encode() else primary.answer(None, words)
        )
    async with connect(service, **HEIRS) as locks:
        if what == "INFO":
            async with locks.lock("a", timeout=5):
                await asyncio.sleep(5)
                assert locks.nodes()[0].state == "up"
        else:
            with pytest.raises(asynclock.QuorumUnavailableError, match="mark"):
                await locks.lock("a").try_acquire()
