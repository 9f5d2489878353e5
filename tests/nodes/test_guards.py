"""What a client notices of nodes that fall silent, break, forget or have another clock."""

import asyncio
import logging
import random
import re
from itertools import pairwise
from typing import Any

import pytest

import asynclock
from asynclock.events import NodeQuarantined
from asynclock.testing import FaultProxy, LocalServer
from asynclock.testing.memory import MemoryEndpoint, MemoryNode, Route
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import KEY, Nodes, seconds_until, start, virtual, virtual_single
from tests.nodes.virtual_servers import Server, alone, played_on
from tests.tables.inside import now, renew_now
from tests.waiting import go_through, in_virtual_time, until

URL = "redis://p0"
SETTINGS: dict[str, Any] = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0}
MAX_TTL = 30.0
"""A third of it is longer than any pause between two looks at a link."""


# ---- silence
@pytest.mark.parametrize("acks", [0, 1])
@played_on(alone, replicas=1)
async def test_a_server_that_falls_silent_is_stalled_then_up_again_or_down(
    server: Server, caplog: pytest.LogCaptureFixture, acks: int
) -> None:
    async with asynclock.connect(URL, acks=acks, restart_guard=False, **SETTINGS) as locks:
        for thaws in (True, False):
            await go_through(locks.lock("a", timeout=5))
            server.freeze()
            with pytest.raises(asynclock.QuorumUnavailableError, match="no answer within 1 s"):
                await locks.lock("a").try_acquire()
            assert locks.nodes()[0].state == "stalled"
            with pytest.raises(asynclock.QuorumUnavailableError, match=r"node_timeout=1 s$"):
                await locks.lock("a").try_acquire()
            if thaws:
                server.thaw()
                assert await seconds_until(lambda: locks.nodes()[0].state == "up") < 0.05
                assert len(server.dialled) == 1, "on the same connection"
        await asyncio.sleep(4.5)
        assert locks.nodes()[0].state == "down"
    assert any(re.search(r"down: no answer for [45]\.\d s", one.message) for one in caplog.records)


@played_on(alone)
async def test_a_link_that_is_too_far_says_which_setting_to_raise(server: Server) -> None:
    server.way.seconds = 0.24
    words = "no answer within node_timeout=0.25 s; a round trip took 0.48 s: raise node_timeout"
    async with asynclock.connect(URL, **{**SETTINGS, "node_timeout": 0.25}) as locks:
        await until(lambda: locks.nodes()[0].state == "stalled")
        with pytest.raises(asynclock.QuorumUnavailableError, match=words):
            await locks.lock("a").try_acquire()
        server.way.seconds = 0.14  # each reply comes late, but before the next request
        await until(lambda: locks.nodes()[0].state == "up")
        with pytest.raises(asynclock.QuorumUnavailableError, match=r"took 0\.\d+ s: raise node_t"):
            await locks.lock("a").try_acquire()


@pytest.mark.parametrize(
    ("timeout", "words"),
    [(0, "login within node_timeout=0.25 s$"), (3, r"; a round trip took [0-9.]+ s: raise node_t")],
)
async def test_so_does_a_new_client(
    asynclock_nodes: list[LocalServer], timeout: float, words: str
) -> None:
    """Also before its first connection is open; in the first moment there is nothing to measure."""
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        proxy.delay(0.15, 0.15)
        async with asynclock.connect(proxy.url) as locks:
            with pytest.raises(asynclock.QuorumUnavailableError, match=words):
                await locks.lock("a").acquire(timeout=timeout)


@played_on(alone)
async def test_raising_node_timeout_helps_however_far_the_server_is(server: Server) -> None:
    server.way.seconds = 1.2
    async with asynclock.connect(URL, node_timeout=3.0, max_ttl=600.0) as locks:
        await go_through(locks.lock("a", timeout=10))


@pytest.mark.parametrize(("node_timeout", "patience"), [(0.5, 2.0), (0.05, 1.0)])
@played_on(alone)
async def test_a_stalled_link_is_closed_soon(
    server: Server, node_timeout: float, patience: float
) -> None:
    """And however short the node timeout is, not because of a moment's silence."""
    settings = {**SETTINGS, "node_timeout": node_timeout, "max_ttl": 600.0}
    async with asynclock.connect(URL, **settings) as locks:
        await asyncio.sleep(0.3)
        server.freeze()
        await locks.inspect("a")
        stalled = now()
        await until(lambda: len(server.dialled) == 2, every=0.001)
        assert patience <= server.dialled[1] - stalled <= 1.3 * patience


@virtual_single
async def test_a_push_that_was_lost_with_its_connection_is_not_waited_for(on: Nodes) -> None:
    await on.ghost()
    waiting = start(on.locks.lock("a").acquire())
    await until(lambda: on.locks.statistics().refused >= 2)
    on.nodes[0].cut()
    await on.nodes[0].command("DEL", KEY)
    assert await seconds_until(waiting.done) < 0.1


@played_on(alone)
async def test_a_release_that_ran_before_its_acquire_is_repeated(server: Server) -> None:
    """The acquire met a server without its script, which another client then loaded."""
    async with asynclock.connect(URL, **SETTINGS) as locks, locks.lock("warm"):
        sources = [words[2] for words in server.asked_for("SCRIPT", "LOAD")]
        server.forget_scripts()
        server.way.seconds = 0.1
        asking = start(locks.lock("a").acquire())
        await asyncio.sleep(0.05)
        asking.cancel()  # the release follows 0.05 s behind
        await asyncio.sleep(0.075)
        assert server.keys.get(KEY) is None
        for source in sources:
            await server.command("SCRIPT", "LOAD", source)
        await asyncio.sleep(0.5)
        assert server.keys.get(KEY + b":#fence") is not None
        assert server.keys.get(KEY) is None


@played_on(alone)
async def test_a_push_that_is_no_invalidation_changes_nothing(server: Server) -> None:
    async with asynclock.connect(URL, **SETTINGS) as locks, locks.lock("a") as lease:
        for client in server.talking:
            client.push([b"message", b"channel", b"asynclock:a"])
        assert await lease.check()
        assert locks.nodes()[0].state == "up"


@played_on(alone)
async def test_a_renewal_of_many_leases_takes_a_server_no_long_time(server: Server) -> None:
    """Others wait while a server executes a command."""

    def renewals() -> list[int]:
        found = [words for words in server.asked_for("EVALSHA") if b"extend" in words]
        return sorted(len(words) - words.index(b"extend") - 3 for words in found)

    async with asynclock.connect(URL, **SETTINGS) as locks:
        leases = [await locks.lock(f"a{number}").acquire() for number in range(101)]
        renew_now(locks)
        await until(lambda: sum(renewals()) >= 101)
        assert renewals() == [1, 100]
        assert all(lease.held for lease in leases)


class Far(Route):
    """Each piece takes 10 ms."""

    def delay(self) -> float:
        return 0.01


@in_virtual_time
async def test_a_first_change_is_not_too_old_for_the_nodes_that_it_meets() -> None:
    """They have just started, so they may have forgotten anything from before they were met."""
    # The numbers are chosen before the nodes are met, as connecting takes some time.
    ends: list[Any] = [MemoryEndpoint(name, MemoryNode(name), Far()) for name in "abc"]
    locks = asynclock.connect(*ends, restart_guard=False)
    # No time for a second try if the nodes of the first round count as missing.
    assert await locks.latch("done", 3).count_down(timeout=0) == 2
    await locks.aclose()


# ---- clocks
@virtual
async def test_a_node_whose_clock_is_ahead_takes_no_request_for_late(on: Nodes) -> None:
    on.nodes[2].jump_clock(30)
    async with on.connect() as locks, locks.lock("warm"):
        await asyncio.sleep(0.2)  # clocks are read ten times a second at most
        async with locks.lock("a"):
            await asyncio.sleep(0.01)
            assert [node.keys.get(KEY) is not None for node in on.nodes] == [True] * 3


@virtual
async def test_when_all_clocks_jumped_ours_stood_still_and_leases_end_sooner(on: Nodes) -> None:
    lease = await on.locks.lock("a", renew=False).acquire()
    before = lease.remaining()
    for node in on.nodes:
        node.jump_clock(3)
    await on.locks.inspect("a")
    assert lease.remaining() == pytest.approx(before - 3, abs=0.1)


@played_on(alone)
async def test_a_node_whose_clock_jumped_is_told_of_as_one_that_does_not_vote(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    events = list[Any]()
    async with asynclock.connect(URL, observers=[events.append], **SETTINGS) as locks:
        async with locks.lock("a"):
            await asyncio.sleep(1)
        server.jump_clock(30)
        await locks.inspect("a")
        assert locks.nodes()[0].state == "quarantined"
    (event,) = (one for one in events if isinstance(one, NodeQuarantined))
    assert event.seconds > 0
    assert "clock jumped" in event.cause
    (record,) = (one for one in caplog.records if "does not vote for" in one.message)
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize("busy", [0.1, 0.4, 0.9])
@played_on(alone)
async def test_an_idle_link_is_asked_each_third_of_max_ttl(server: Server, busy: float) -> None:
    """Whenever the last reply came: no reading is older, and each costs one request."""
    async with asynclock.connect(URL, max_ttl=MAX_TTL) as locks:
        await locks.ready()
        await asyncio.sleep(busy)
        await locks.inspect("a")
        begun = len(server.asked)
        await asyncio.sleep(3 * MAX_TTL + 1)
        assert [words[0] for words in server.asked[begun:]] == [b"TIME"] * 9
        gaps = [after - one for one, after in pairwise(server.asked_at[begun - 1 :])]
        assert gaps == pytest.approx([MAX_TTL / 3] * 9, abs=0.02)


@pytest.mark.parametrize("tracking", [False, True])
@played_on(alone)
async def test_what_no_push_tells_is_asked_at_intervals(server: Server, *, tracking: bool) -> None:
    if not tracking:
        server.instead[b"CLIENT"] = lambda _words: ReplyError("NOPERM no right")
    async with asynclock.connect(URL, max_ttl=MAX_TTL) as locks:
        await locks.ready()
        await asyncio.sleep(MAX_TTL + 1)
        assert len(server.asked_for("HMGET")) == (1 if tracking else 4)
        server.flush()  # or a restart that a proxy hides
        await asyncio.sleep(MAX_TTL / 3)
        assert "its keys were flushed" in locks.nodes()[0].cause


@played_on(alone)
async def test_the_round_trip_is_a_mean_of_the_last_requests(server: Server) -> None:
    """Neither that of the first one, nor only the newest."""
    async with asynclock.connect(URL, **{**SETTINGS, "node_timeout": 2.0}) as locks:

        async def after(times: int) -> float:
            for _ in range(times):
                async with locks.lock("a"):
                    await asyncio.sleep(0.5)
            return locks.nodes()[0].round_trip or 0.0

        near = await after(3)
        server.way.seconds = 0.1
        between, far = await after(2), await after(60)
    assert near < 0.01
    assert near + 0.02 < between < far / 2
    assert 0.19 < far < 0.21


@pytest.mark.parametrize(("chance", "part"), [(0.0, 0.5), (1.0, 1.0)])
@in_virtual_time
async def test_a_replica_is_met_again_ever_more_rarely_until_it_is_a_primary(
    monkeypatch: pytest.MonkeyPatch, chance: float, part: float
) -> None:
    """Clients that met it together do not all come back together."""
    monkeypatch.setattr(random, "random", lambda: chance)
    server: Server = alone(monkeypatch)
    server.info["role"] = "slave"
    async with asynclock.connect(URL, **SETTINGS) as locks:
        await until(lambda: len(server.dialled) == 8, timeout=60)
        pauses = [after - one for one, after in pairwise(server.dialled)]
        longest = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
        assert pauses == pytest.approx([part * one for one in longest], abs=0.001)
        server.info["role"] = "master"
        await until(lambda: locks.nodes()[0].state != "rejected")
