"""What a command does whose slot moves, or that no server can take. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.cluster.parked import TRY_AGAIN, ParkedCommands
from asynclock._nodes.replies import Failure
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import seconds_until, start
from tests.nodes.virtual_servers import VirtualCluster, connect, key_of, name_on, slot_of
from tests.waiting import in_virtual_time

NAME = name_on(0)
SLOT = slot_of(NAME)
SPLIT = "TRYAGAIN Multiple keys request during rehashing of slot"


async def met(locks: asynclock.LockManager) -> None:
    """Let the manager know all servers."""
    for number in range(3):
        async with locks.lock(f"warm-{name_on(number)}"):
            pass


@in_virtual_time
async def test_a_command_is_asked_at_the_server_that_gets_the_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For this once, so the next one begins where the slot still is; with its script's source."""
    cluster = VirtualCluster(monkeypatch)
    source, target = cluster.primaries[:2]
    async with connect(cluster) as locks:
        await met(locks)
        source.odd[SLOT] = f"ASK {SLOT} {target.host}:{target.port}"
        target.forget_scripts()
        began = len(target.asked)
        lease = await locks.lock(NAME).acquire()
        assert await target.command("GET", key_of(NAME)) == lease.owner
        words = [words[0] for words in target.asked[began:] if words[0] != b"CLUSTER"]
        assert words.index(b"ASKING") + 1 == words.index(b"EVAL")
        source.odd.clear()
        async with locks.lock(NAME) as other:
            assert await source.command("GET", key_of(NAME)) == other.owner


@in_virtual_time
async def test_after_a_slot_has_moved_its_new_server_is_asked_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, before the next view."""
    cluster = VirtualCluster(monkeypatch)
    source, target = cluster.primaries[:2]
    async with connect(cluster) as locks:
        await met(locks)
        await asyncio.sleep(0.2)
        views = len(source.asked_for("CLUSTER", "SLOTS"))
        for server in cluster.servers:
            server.instead[b"CLUSTER"] = lambda _words: ReplyError("ERR not now")
        cluster.tell(cluster.moved(SLOT, target))
        began = _clock.now()
        async with locks.lock(NAME) as lease:
            assert await target.command("GET", key_of(NAME)) == lease.owner
        assert _clock.now() - began < 0.01
        asked = len(source.asked)
        async with locks.lock(NAME):
            pass
        news = [words for words in source.asked[asked:] if words[0] != b"CLUSTER"]
        assert news == []
        await asyncio.sleep(0.1)
        assert len(source.asked_for("CLUSTER", "SLOTS")) > views, "the view is read again soon"


@in_virtual_time
async def test_a_slot_that_moved_to_a_server_outside_of_the_view_waits_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        await met(locks)
        cluster.tell(cluster.moved(SLOT, cluster.spare), epoch=2)
        began = _clock.now()
        async with locks.lock(NAME) as lease:
            assert await cluster.spare.command("GET", key_of(NAME)) == lease.owner
        assert _clock.now() - began < 0.2


@in_virtual_time
async def test_redirects_in_a_circle_are_followed_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    first, second = cluster.primaries[:2]
    async with connect(cluster) as locks:
        await met(locks)
        first.odd[SLOT] = f"MOVED {SLOT} c1:7000"
        second.odd[SLOT] = f"MOVED {SLOT} c0:7000"
        before = sum(len(server.asked_for("EVALSHA")) for server in (first, second))
        with pytest.raises(asynclock.QuorumUnavailableError, match="MOVED"):
            await locks.lock(NAME).try_acquire()
        after = sum(len(server.asked_for("EVALSHA")) for server in (first, second))
        assert 2 <= after - before <= 12


@in_virtual_time
async def test_a_redirect_without_a_host_leads_to_the_same_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that does not know its own name leaves it out."""
    cluster = VirtualCluster(monkeypatch)
    source, target = cluster.primaries[1], cluster.primaries[0]
    name = name_on(1)
    async with connect(cluster) as locks:
        await met(locks)
        source.odd[slot_of(name)] = f"MOVED {slot_of(name)} :7000"
        with pytest.raises(asynclock.QuorumUnavailableError, match="MOVED"):
            await locks.lock(name).try_acquire()
        assert await target.command("GET", key_of(name)) is None
        assert not any(key_of(name) in words for words in target.asked)


class Few(dict[int, str]):
    """An error for each slot, but only so often, or a loop without a pause would never end."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def get(self, _slot: int, _default: Any = None) -> Any:
        self._left -= 1
        return SPLIT if self._left > 0 else None


@in_virtual_time
async def test_while_a_slot_is_split_a_command_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    source = cluster.primaries[0]
    async with connect(cluster, node_timeout=2.0) as locks:
        await met(locks)
        source.odd = Few(200)
        before = len(source.asked_for("EVALSHA"))
        waiting = start(locks.lock(NAME).acquire())
        await asyncio.sleep(1.0)
        assert not waiting.done()
        assert len(source.asked_for("EVALSHA")) - before <= 1.0 / TRY_AGAIN + 2
        source.odd = {}
        assert await seconds_until(waiting.done) < 0.1
        assert await waiting


@in_virtual_time
async def test_an_acquire_that_was_given_up_meanwhile_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its release was answered already: the name would be locked for a ttl, with no owner."""
    cluster = VirtualCluster(monkeypatch)
    source = cluster.primaries[0]
    async with connect(cluster, node_timeout=5.0, ttl=60, max_ttl=60) as locks:
        await met(locks)
        source.odd[SLOT] = SPLIT
        waiting = start(locks.lock(NAME).acquire())
        await asyncio.sleep(0.31)
        waiting.cancel()
        await asyncio.sleep(0)
        source.odd.clear()
        await asyncio.sleep(1)
        assert await source.command("GET", key_of(NAME)) is None


class Waiting:
    """A command without a server."""

    def __init__(self, parked: ParkedCommands, until: float, *, release: bool = False) -> None:
        self.parked, self.until, self.release = parked, until, release
        self.sent: list[float] = []
        self.failures: list[str] = []

    def go(self) -> None:
        self.sent.append(_clock.now())

    def fail(self, failure: Failure) -> None:
        self.failures.append(failure.cause)


@in_virtual_time
async def test_each_parked_command_fails_at_its_own_timeout() -> None:
    began = _clock.now()
    parked = ParkedCommands(lambda: Failure("no view"))
    first, second = (Waiting(parked, began + seconds) for seconds in (1.0, 2.0))
    parked.park(first)
    parked.park(second)
    for seconds, failed in ((0.99, 0), (1.01, 1), (1.99, 1), (2.01, 2)):
        await asyncio.sleep(began + seconds - _clock.now())
        assert first.failures + second.failures == ["no view"] * failed
    parked.resume()
    assert first.sent == second.sent == []


@in_virtual_time
async def test_all_parked_commands_of_one_moment_fail_then() -> None:
    parked = ParkedCommands(lambda: Failure("no view"))
    commands = [Waiting(parked, _clock.now() + 1.0) for _ in range(3)]
    for command in commands:
        parked.park(command)
    await asyncio.sleep(1.01)
    assert [command.failures for command in commands] == [["no view"]] * 3


@in_virtual_time
async def test_parked_commands_are_sent_once_in_their_order() -> None:
    order: list[int] = []
    parked = ParkedCommands(lambda: Failure("no view"))
    for number in range(3):
        command: Any = Waiting(parked, _clock.now() + 60)
        command.go = lambda number=number: order.append(number)
        parked.park(command)
    parked.resume()
    parked.resume()
    assert order == [0, 1, 2]


@in_virtual_time
async def test_a_parked_command_that_was_given_up_is_not_sent() -> None:
    parked = ParkedCommands(lambda: Failure("no view"))
    waiting, again = (Waiting(parked, _clock.now() + 60, release=True) for _ in range(2))
    parked.park(waiting)
    assert parked.releases
    parked.retry(again)
    assert parked.drop(waiting)
    assert parked.releases, "the other one is a release as well"
    assert parked.drop(again)
    assert not parked.drop(again)
    assert not parked.releases
    parked.resume()
    await asyncio.sleep(1)
    assert waiting.sent == again.sent == []


@in_virtual_time
async def test_all_waiting_commands_fail_when_the_manager_is_closed() -> None:
    parked = ParkedCommands(lambda: Failure("no view"))
    waiting, again = (Waiting(parked, _clock.now() + 60) for _ in range(2))
    parked.park(waiting)
    parked.retry(again)
    parked.fail(Failure("closed"))
    parked.resume()
    await asyncio.sleep(100)
    for command in (waiting, again):
        assert command.failures == ["closed"]
        assert command.sent == []
    parked.park(waiting)
    assert not parked.releases
