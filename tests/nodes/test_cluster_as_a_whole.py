"""What a Cluster as a whole tells, writes, looks at and gives back. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.replies import Answer, Failure
from asynclock._nodes.script import Command
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import seconds_until, start
from tests.nodes.test_cluster_in_time import LONG
from tests.nodes.test_cluster_redirects import met
from tests.nodes.virtual_servers import VirtualCluster, connect, key_of, name_on, node_of
from tests.waiting import in_virtual_time, until

NAME = name_on(0)


@in_virtual_time
async def test_a_wrong_password_ends_a_call_that_came_before_the_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    for server in cluster.servers:
        server.instead[b"HELLO"] = lambda _words: ReplyError("WRONGPASS invalid")
    locks = connect(cluster)
    began = _clock.now()
    with pytest.raises(asynclock.ConfigurationError, match="WRONGPASS"):
        await locks.lock("a").acquire(timeout=30)
    assert _clock.now() - began < 0.2
    await locks.aclose()


@in_virtual_time
async def test_a_cluster_that_was_refused_has_no_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        await met(locks)
        node = node_of(locks)
        assert node.obstacle(_clock.now()) is None
        node.rejected = Failure("another set of nodes", permanent=True)
        assert node.obstacle(_clock.now()) is node.rejected


@in_virtual_time
async def test_all_servers_are_written_to_before_the_tick_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        await met(locks)
        node, written = node_of(locks), []
        for shard in node.shards:
            monkeypatch.setattr(shard, "write", lambda shard=shard: written.append(shard))
        node.write()
        assert written == list(node.shards)


@in_virtual_time
async def test_who_waits_for_votes_learns_of_the_last_server_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    cluster.primaries[2].kill()
    async with connect(cluster) as locks:
        await asyncio.sleep(5)
        ready = start(locks.ready(voting=True))
        await asyncio.sleep(5)
        assert not ready.done()
        cluster.primaries[2].restart()
        cluster.primaries[2].born_ago(3600)
        await until(lambda: locks.nodes()[0].state == "up", every=0.001)
        assert await seconds_until(ready.done) < 0.01


@in_virtual_time
async def test_commands_without_a_server_are_answered_when_the_manager_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    cluster.tell([])
    locks = connect(cluster, node_timeout=5.0, **LONG)
    await locks.ready()
    waiting = Answer(asyncio.get_running_loop())
    node_of(locks).ask(Command.plain("GET", "a", keys=("a",)), waiting, 0)
    await locks.aclose()
    assert waiting.future.done()
    assert waiting.future.result().cause == "the manager is closed"


# releases


@in_virtual_time
async def test_a_release_that_a_frozen_server_has_goes_to_its_heir_with_the_next_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    old, heir = cluster.primaries[0], cluster.spare
    async with connect(cluster, **LONG) as locks:
        await met(locks)
        lease = await locks.lock(NAME).acquire()
        await heir.command("SET", key_of(NAME), lease.owner)
        old.freeze()
        await lease.release()
        cluster.tell(cluster.replaced(old, heir), epoch=2)
        await until(lambda: heir.connections == 2, "as a voter and as a source", every=0.001)

        async def free() -> bool:
            return await heir.command("GET", key_of(NAME)) is None

        assert await seconds_until(free) < 0.1


@in_virtual_time
async def test_a_close_sends_the_releases_that_are_kept_and_reads_a_view_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster, **LONG) as locks:
        await met(locks)
        node = node_of(locks)
        await asyncio.sleep(0.3)
        lease = await locks.lock(NAME).acquire()
        now = _clock.now()
        node.keep_release(locks.lock(NAME)._spec.release(lease.owner, now - 1, now + 60))
        (grant,) = locks._engine.renewals.grants()
        locks._engine.mark_lost(grant, "a test")
        began = _clock.now()
        await node.settle()
        assert _clock.now() - began < 0.15
        assert await cluster.primaries[0].command("GET", key_of(NAME)) is None


@in_virtual_time
async def test_a_close_waits_for_a_server_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lease still, and gets its release."""
    cluster = VirtualCluster(monkeypatch)
    server = cluster.primaries[0]
    server.durable = True
    locks = connect(cluster, node_timeout=2.0, **LONG)
    await met(locks)
    lease = await locks.lock(NAME).acquire()
    server.kill()
    await lease.release()
    closing = start(locks.aclose())
    await asyncio.sleep(0.5)
    assert not closing.done()
    assert await server.command("GET", key_of(NAME)) == lease.owner
    server.restart()
    await closing
    assert await server.command("GET", key_of(NAME)) is None


@in_virtual_time
async def test_a_release_that_is_kept_is_sent_without_its_ticket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ticket, which it would put back, may have left by then. 2: after a failed attempt."""
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        await met(locks)
        node, now = node_of(locks), _clock.now()
        spec = locks.lock(NAME)._spec
        node.keep_release(spec.release("me", now, now + 60, (0, "ticket", 2000, 7)))
        node.look_again()

        def sent() -> list[bytes]:
            asked = [words for words in cluster.primaries[0].asked if b"me" in words]
            return list(asked[0][asked[0].index(b"release") :]) if asked else []

        assert await until(sent) == [b"release", b"me", b"2"]


@in_virtual_time
async def test_an_unexpected_end_of_a_look_is_told_as_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    locks = connect(cluster)

    async def fails() -> Any:
        raise OSError("no sockets are left")

    monkeypatch.setattr(node_of(locks)._reader, "read", fails)
    await locks.ready()
    await until(lambda: "no sockets are left" in locks.nodes()[0].cause)
    await locks.aclose()


@in_virtual_time
async def test_a_push_wakes_those_who_wait_for_this_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster, **LONG) as here, connect(cluster, **LONG) as there:
        lease = await here.lock(NAME).acquire()
        waiting = start(there.lock(NAME).acquire())
        await asyncio.sleep(3)
        woken: list[str | None] = []
        node_of(there).on_wake = woken.append
        await lease.release()
        await until(lambda: woken)
        assert all(key is not None and NAME in key for key in woken)
        waiting.cancel()


@pytest.mark.parametrize(("random", "seconds"), [(0.0, 0.8), (1.0, 1.05)])
@in_virtual_time
async def test_clients_that_began_together_do_not_look_together(
    monkeypatch: pytest.MonkeyPatch, random: float, seconds: float
) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        await met(locks)
        node_of(locks).random = lambda: random
        await asyncio.sleep(2)
        before = len(cluster.primaries[0].asked_for("CLUSTER", "SLOTS"))
        await asyncio.sleep(40 * seconds)
        looks = len(cluster.primaries[0].asked_for("CLUSTER", "SLOTS")) - before
        assert looks == pytest.approx(40, abs=1)
