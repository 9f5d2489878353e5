"""Releases to a Cluster whose servers come and go, and the end of a manager. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from asynclock import _clock
from asynclock._nodes.replies import Answer
from asynclock._nodes.script import Command
from tests.engine.virtual_nodes import seconds_until, start
from tests.nodes.test_cluster_in_time import LONG, kept
from tests.nodes.virtual_servers import VirtualCluster, connect, key_of, name_on, node_of, slot_of
from tests.waiting import in_virtual_time


@pytest.mark.parametrize("how", ["dead", "frozen"])
@in_virtual_time
async def test_a_release_goes_to_the_heir_of_its_primary(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    cluster = VirtualCluster(monkeypatch)
    old, heir, name = cluster.primaries[0], cluster.spare, name_on(0)
    async with connect(cluster, **LONG) as locks:
        lease = await locks.lock(name).acquire()
        await heir.command("SET", key_of(name), lease.owner)
        if how == "dead":
            old.kill()
        else:
            old.freeze()
        await lease.release()
        await asyncio.sleep(1)
        cluster.tell(cluster.replaced(old, heir), epoch=2)

        async def free() -> bool:
            return await heir.command("GET", key_of(name)) is None

        assert await seconds_until(free) < 2.5


@in_virtual_time
async def test_releases_that_can_no_longer_matter_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    shards = cluster.shards
    cluster.tell([])
    async with connect(cluster) as locks:
        node, now = node_of(locks), _clock.now()
        spec = locks.lock("a")._spec
        for number in range(50):
            node.keep_release(spec.release(f"owner-{number}", now, now + 1.0))
        await asyncio.sleep(1.5)
        node.keep_release(spec.release("new", now, _clock.now() + 60))
        node.keep_release(spec.release("new", now, _clock.now() + 60))
        node.keep_release(spec.release("brief", now, _clock.now() + 0.01))
        assert len(node._unsent) == 2
        await asyncio.sleep(0.05)
        cluster.tell(shards)
        await asyncio.sleep(2.2)
        sent = [
            words[7] for server in cluster.servers for words in server.asked if b"release" in words
        ]
        assert set(sent) == {b"new"}


@in_virtual_time
async def test_a_closed_cluster_answers_each_command_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    cluster.tell([])
    cluster.primaries[0].freeze()
    locks = connect(cluster)
    await locks.ready()
    node, loop = node_of(locks), asyncio.get_running_loop()
    ask, release = Command.plain("GET", "a", keys=("a",)), Answer(loop)
    waiting = Answer(loop)
    node.ask(ask, waiting, 0)
    await locks.aclose()
    assert kept() == [], "not even the task of a server that does not answer"
    assert (await waiting.future).cause == "the manager is closed"
    node.ask(ask, release, 0)
    assert release.future.done()
    assert release.future.result().cause == "the manager is closed"


@in_virtual_time
async def test_closing_a_manager_that_never_met_its_cluster_takes_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    cluster.tell([])
    async with connect(cluster, node_timeout=2.0) as locks:
        now = _clock.now()
        node_of(locks).keep_release(locks.lock("a")._spec.release("me", now, now + 60))
        await locks.aclose()
        assert _clock.now() - now < 0.5


@in_virtual_time
async def test_a_release_that_is_sent_again_follows_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the client has read the view in which the slot has moved."""
    cluster = VirtualCluster(monkeypatch)
    source, target, name = *cluster.primaries[:2], name_on(0)
    async with connect(cluster, **LONG) as locks:
        lease = await locks.lock(name).acquire()
        await target.command("SET", key_of(name), lease.owner)
        source.freeze()
        releasing = start(lease.release())
        await asyncio.sleep(0.1)
        cluster.tell(cluster.moved(slot_of(name), target), to=[target])
        source.odd[slot_of(name)] = f"MOVED {slot_of(name)} c1:7000"
        source.cut()
        source.frozen = False
        await asyncio.sleep(3)
        assert await target.command("GET", key_of(name)) is None
        await releasing


@pytest.mark.parametrize("place", ["waits for a view", "is kept for later"])
@in_virtual_time
async def test_a_close_waits_for_the_server_that_a_release_needs(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    cluster = VirtualCluster(monkeypatch)
    server, name, whole = cluster.primaries[0], name_on(0), cluster.shards
    async with connect(cluster, node_timeout=2.0, **LONG) as locks:
        lease = await locks.lock(name).acquire()
        parts = cluster.moved(slot_of(name), cluster.spare)
        cluster.tell([part for part in parts if part[2] != [cluster.spare]], epoch=2)
        await asyncio.sleep(1.1)
        releasing = start(lease.release())
        await asyncio.sleep(2.1 if place == "is kept for later" else 0.1)
        closing = start(locks.aclose())
        await asyncio.sleep(1)
        assert not closing.done()
        cluster.tell(whole, epoch=3)
        assert await seconds_until(closing.done) < 0.2
        assert await server.command("GET", key_of(name)) is None
        await releasing


@in_virtual_time
async def test_a_release_that_was_not_needed_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    cluster.tell([])
    async with connect(cluster) as locks:
        node, now, loop = node_of(locks), _clock.now(), asyncio.get_running_loop()
        asked, released = Answer(loop), Answer(loop)
        spec = locks.lock("a")._spec
        node.ask(spec.acquire("me", 60.0, 1, 0, 60_000), asked, 0)
        assert not asked.future.done()
        node.deliver(spec.release("me", now, now + 60), released, 0)
        for answer in (asked, released):
            assert answer.future.result().cause == "given up before it was executed"
        other = Answer(loop)
        node.deliver(spec.release("other", now, now + 60), other, 0)
        assert not other.future.done()
