"""Servers behind Sentinels that the test makes up, in virtual time; the real: tests/replicated."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.sentinel import SentinelNode
from asynclock._nodes.watched import CONFIRMED, POLL
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import seconds_until, start
from tests.nodes.virtual_servers import Server, VirtualService
from tests.waiting import in_virtual_time, until

KEY, MARK = "asynclock:a", "asynclock::#primary"


def connect(service: VirtualService, **settings: Any) -> asynclock.LockManager:
    usual = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0, "restart_guard": False}
    return asynclock.connect(service.url, **{**usual, **settings})


def node_of(locks: asynclock.LockManager) -> SentinelNode:
    (node,) = locks._engine.multiplexer.nodes
    assert isinstance(node, SentinelNode)
    return node


def tasks() -> list[str]:
    return [name for task in asyncio.all_tasks() if "asynclock" in (name := task.get_name())]


@in_virtual_time
async def test_the_primary_that_the_sentinels_name_is_used_and_nobody_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Sentinels have their usual port."""
    service = VirtualService(monkeypatch)
    async with connect(service) as locks:
        async with locks.lock("a") as lease:
            assert await service.servers[0].command("GET", KEY) == lease.owner
        (health,) = locks.nodes()
        assert (health.state, health.role) == ("up", "master")
        assert health.node == "mymaster@s0:26379,s1:26379,s2:26379"
        mark = await service.servers[0].command("GET", MARK)
        assert mark.split()[0] == f"{service.servers[0].run_id}.1"
    assert tasks() == []
    assert [one.connections for one in (*service.sentinels, *service.servers)] == [0] * 5


@in_virtual_time
async def test_another_primary_is_followed_within_a_poll(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = VirtualService(monkeypatch)
    old, new = service.servers
    with caplog.at_level(logging.INFO, "asynclock.nodes"):
        async with connect(service) as locks:
            async with locks.lock("a"):
                pass
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
                before = node_of(locks).link
                await asyncio.sleep(3 * POLL)
                assert node_of(locks).link is before, "it is not left again"
    said = [record.message for record in caplog.records if "the primary is" in record.message]
    assert [words.rpartition(" ")[2] for words in said] == ["p0:6379", "p1:6379", "p0:6379"]


@pytest.mark.parametrize("connecting", [False, True])
@in_virtual_time
async def test_a_primary_of_sentinels_is_confirmed_from_the_question_on(
    monkeypatch: pytest.MonkeyPatch, connecting: bool
) -> None:
    service, asked = VirtualService(monkeypatch), 0.0
    for sentinel in service.sentinels:
        sentinel.way.seconds = 0.4
        tells = sentinel.instead[b"SENTINEL"]

        def noting(words: Any, tells: Any = tells) -> Any:
            nonlocal asked
            asked = _clock.now() - 0.4
            return tells(words)

        sentinel.instead[b"SENTINEL"] = noting

    async def next_poll() -> None:
        before = asked
        await until(lambda: asked > before)

    async with connect(service, node_timeout=2.0) as locks:
        await locks.ready()
        await asyncio.sleep(5)
        await next_poll()
        if connecting:
            await asyncio.sleep(0.45)  # until the answers are here
            service.servers[0].cut()
            await next_poll()
        for sentinel in service.sentinels:
            sentinel.instead[b"SENTINEL"] = lambda _words: ReplyError("ERR not now")
        await asyncio.sleep(asked + CONFIRMED - 0.1 - _clock.now())
        assert locks.nodes()[0].state == "up"
        await asyncio.sleep(0.2)
        assert locks.nodes()[0].state == "down"
        await asyncio.sleep(1.5)
        assert "not confirmed as the primary: " in locks.nodes()[0].cause


@in_virtual_time
async def test_a_grant_that_is_told_after_the_confirmation_has_ended_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = VirtualService(monkeypatch)
    async with connect(service, node_timeout=8.0, ttl=60, max_ttl=60) as locks:
        async with locks.lock("a"):
            pass
        facts = node_of(locks).trust.facts
        assert facts is not None
        assert facts.lag == CONFIRMED
        service.name(None, epoch=1)
        service.servers[0].way.seconds = CONFIRMED
        with pytest.raises(asynclock.QuorumUnavailableError, match="not confirmed"):
            await locks.lock("a").try_acquire()


@in_virtual_time
async def test_sentinels_that_fail_for_a_moment_cost_no_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are asked again soon, and once they answer no more often than before."""
    service = VirtualService(monkeypatch)
    polls: list[float] = []
    sentinel = service.sentinels[0]
    tells = sentinel.instead[b"SENTINEL"]

    def noting(words: Any) -> Any:
        polls.append(_clock.now())
        return tells(words)

    sentinel.instead[b"SENTINEL"] = noting
    async with connect(service) as locks:
        async with locks.lock("a"):
            pass
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


@in_virtual_time
async def test_a_dead_address_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Sentinels may soon name another one."""
    service = VirtualService(monkeypatch)
    service.servers[0].freeze()
    opened = 0
    reach = service.servers[0].open

    async def counting(*args: Any) -> Any:
        nonlocal opened
        opened += 1
        return await reach(*args)

    monkeypatch.setattr(service.servers[0], "open", counting)
    async with connect(service, node_timeout=0.25) as locks:
        await asyncio.sleep(20)
        before = opened
        await asyncio.sleep(10)
        assert opened - before >= 10
        assert "p0:6379: no answer to the login within 0.5 s" in locks.nodes()[0].cause


@pytest.mark.parametrize(("flags", "known"), [("slave,s_down", True), (None, False)])
@in_virtual_time
async def test_a_replica_that_the_sentinels_know_may_come_back(
    monkeypatch: pytest.MonkeyPatch, flags: str | None, known: bool
) -> None:
    service = VirtualService(monkeypatch)
    service.acknowledge(0)
    replicas = {service.servers[1]: flags} if flags else {}
    service.name(service.servers[0], epoch=1, replicas=replicas)
    wanted = asynclock.QuorumUnavailableError if known else asynclock.ConfigurationError
    async with connect(service, acks=1) as locks:
        with pytest.raises(wanted):
            await locks.lock("a").acquire(timeout=3)


@in_virtual_time
async def test_the_replicas_that_the_sentinels_see_must_acknowledge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = VirtualService(monkeypatch)
    primary, replica = service.servers
    others: dict[Server, str] = {Server(f"p{n}", 6379): "slave" for n in (8, 9)}
    primary.info["connected_slaves"] = 1
    dead = dict.fromkeys(others, "slave,s_down")
    service.name(primary, epoch=1, replicas={replica: "slave", **dead})
    service.acknowledge(3)

    async def waits_for(count: str) -> bool:
        primary.asked.clear()
        async with locks.lock("a"):
            return primary.asked_for("WAIT")[0][1] == count.encode()

    async with connect(service, acks="all") as locks:
        assert await waits_for("1"), "the others are dead when it connects"
        service.name(primary, epoch=1, replicas={replica: "slave", **others})
        await until(lambda: waits_for("3"), "they are back", timeout=2)
        service.name(primary, epoch=1, replicas={replica: "slave", **dead})
        await until(lambda: waits_for("1"), "two have died", timeout=2)


@in_virtual_time
async def test_an_heir_that_has_every_grant_serves_those_who_saw_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = VirtualService(monkeypatch)
    old, heir = service.servers
    stream = "ip=p1,port=6379,state=online,offset=100,lag=0"
    old.info = {"connected_slaves": 1, "slave0": stream, "master_repl_offset": 100}
    caplog.set_level(logging.INFO, "asynclock.nodes")
    settings: dict[str, Any] = {"ttl": 50.0, "max_ttl": 100.0, "restart_guard": True}
    async with connect(service, acks="all", **settings) as locks:
        await locks.ready()
        node = node_of(locks)
        node.trust.votes_from = node.trust.renews_from = 0.0  # it has known the primary for long
        async with locks.lock("a", timeout=5):
            await asyncio.sleep(5)
            roster = (await old.command("GET", MARK)).split()[3]
            assert roster.endswith(";9;p1:6379"), "seconds to take for death, and the margin"
            heir.keys.values.update(old.keys.values)
            old.kill()
            service.name(heir, epoch=2)
            began = _clock.now()
        await until(lambda: node.trust.facts and node.trust.facts.run_id == heir.run_id)
        async with locks.lock("b", timeout=30):
            assert _clock.now() - began < 3 * CONFIRMED
    text = "an heir may serve at once; a dead replica stops locks for 9 s"
    assert any(record.message.endswith(text) for record in caplog.records)


@in_virtual_time
async def test_an_heir_waits_if_others_may_have_used_the_primary_for_longer_than_a_look_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may do so for CONFIRMED seconds after the heir was named; a look counts for nine."""
    service = VirtualService(monkeypatch)
    old, heir = service.servers
    stream = "ip=p1,port=6379,state=online,offset=100,lag=0"
    old.info = {"connected_slaves": 1, "slave0": stream, "master_repl_offset": 100}
    settings: dict[str, Any] = {"ttl": 50.0, "max_ttl": 100.0, "restart_guard": True}
    async with connect(service, acks="all", **settings) as locks:
        await locks.ready()
        node = node_of(locks)
        node.trust.votes_from = node.trust.renews_from = 0.0  # it has known the primary for long
        await asyncio.sleep(5)
        heir.keys.values.update(old.keys.values)
        old.kill()
        await asyncio.sleep(9 - CONFIRMED)
        service.name(heir, epoch=2)
        await until(lambda: node.trust.facts and node.trust.facts.run_id == heir.run_id)
        assert node.votes_from > _clock.now() + 50


@in_virtual_time
async def test_clients_do_not_ask_the_sentinels_all_at_the_same_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an outage they all begin at once."""
    service = VirtualService(monkeypatch)
    for chance, pause in ((0.0, 0.75 * POLL), (1.0, POLL)):
        async with connect(service) as locks:
            await locks.ready()
            node_of(locks).random = lambda chance=chance: chance  # type: ignore[misc]
            await asyncio.sleep(2 * POLL)
            service.sentinels[0].asked.clear()
            await asyncio.sleep(30 * pause)
            polls = len(service.sentinels[0].asked_for("SENTINEL", "MASTER"))
            assert polls == pytest.approx(30, abs=1)


@in_virtual_time
async def test_where_a_dead_replica_would_stop_locks_for_too_long_an_heir_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = VirtualService(monkeypatch)
    caplog.set_level(logging.INFO, "asynclock.nodes")
    async with connect(service, acks="all", ttl=9, max_ttl=9) as locks:
        async with locks.lock("a", timeout=5):
            assert len((await service.servers[0].command("GET", MARK)).split()) == 3
    assert any(one.message.endswith("an heir waits for max_ttl") for one in caplog.records)


@in_virtual_time
async def test_where_a_client_without_a_roster_came_first_an_heir_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its grants do not wait for the replicas that the roster would name."""
    service = VirtualService(monkeypatch)
    primary = service.servers[0]
    caplog.set_level(logging.INFO, "asynclock.nodes")
    async with connect(service, acks=1) as others, others.lock("a"):
        async with connect(service, acks="all", ttl=50, max_ttl=100) as locks:
            async with locks.lock("b", timeout=5):
                assert len((await primary.command("GET", MARK)).split()) == 3
    assert any(one.message.endswith("an heir waits for max_ttl") for one in caplog.records)
    assert not any("may serve at once" in one.message for one in caplog.records)


@pytest.mark.parametrize("acks", [0, 1])
@in_virtual_time
async def test_a_client_that_keeps_no_roster_leaves_a_primary_with_an_open_one(
    monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    service = VirtualService(monkeypatch)
    primary = service.servers[0]
    async with connect(service, acks=acks) as locks:
        async with locks.lock("a"):
            pass
        node = node_of(locks)
        before, mark = node.link, await primary.command("GET", MARK)
        await asyncio.sleep(3)
        assert node.link is before
        assert (await primary.command("GET", MARK)) == mark, "it begins no roster"
        await primary.command("SET", MARK, f"{mark} 3;9;p1:6379")
        assert await seconds_until(lambda: node.link not in (None, before)) < 1.5 * POLL
        assert (await primary.command("GET", MARK)).split()[3].startswith("-"), "it is closed"
        link = node.link
        await asyncio.sleep(5)
        assert node.link is link


@in_virtual_time
async def test_a_demoted_primary_is_no_mistake_while_sentinels_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They will name the next one."""
    service = VirtualService(monkeypatch)
    old, new = service.servers
    old.info["role"] = "slave"
    async with connect(service) as locks:
        waiting = start(locks.lock("a").acquire(timeout=30))
        await asyncio.sleep(3)
        assert not waiting.done()
        assert old.connections == 0
        service.name(new, epoch=2)
        assert await waiting


@in_virtual_time
async def test_a_handshake_that_is_given_up_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = VirtualService(monkeypatch)
    primary, loop = service.servers[0], asyncio.get_running_loop()

    def late(_words: Any) -> Any:
        primary.way.seconds = 1000.0  # for the reply alone
        loop.call_later(0.01, setattr, primary.way, "seconds", 0.0)
        return ReplyError("ERR no")

    primary.instead[b"EVALSHA"] = late
    locks = connect(service)
    asking = start(locks.lock("a").try_acquire())
    await asyncio.sleep(0.5)
    assert primary.connections == 1
    await locks.aclose()
    with pytest.raises(asynclock.AsyncLockError):
        await asking
    await asyncio.sleep(0.05)
    assert primary.connections == 0
