"""What is not promised: each limit that docs/guarantees.md names, played on real servers.

A limit that is lifted one day turns its test red: then the page must promise more.
"""

import asyncio
import contextlib
from typing import Literal

import pytest

import asynclock
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.able_servers import need_clock_jumps
from tests.guards.conftest import Connect
from tests.tables.inside import keeps_turns
from tests.waiting import PATIENCE, until

GUARDED = {"ttl": 0.6, "max_ttl": 1.0, "node_timeout": 0.25}
BACK = 600.0


async def fence_of(connect: Connect, servers: list[LocalServer]) -> int:
    """The fence of a lease that a new client gets and gives back, with every guard on."""
    locks = connect(*(server.url for server in servers), **GUARDED)
    async with locks.lock("b").acquire(timeout=PATIENCE):
        pass  # from here on the floor comes from the clocks that the client has read
    async with locks.lock("a").acquire(timeout=PATIENCE) as lease:
        fence = lease.fence
    await locks.aclose()
    return fence


async def all_vote(connect: Connect, servers: list[LocalServer]) -> None:
    """Wait until a new client would count every node."""
    locks = connect(*(server.url for server in servers), **GUARDED)

    async def all_up() -> bool:
        with contextlib.suppress(asynclock.QuorumUnavailableError):
            await locks.inspect("b")
        return {node.state for node in locks.nodes()} == {"up"}

    await until(all_up, "all nodes vote", every=0.05)
    await locks.aclose()


@pytest.mark.parametrize("moved", [0.0, BACK])
@pytest.mark.parametrize("how", ["clocks_set_back", "never_written", "clocks_apart"])
async def test_counters_lost_one_after_another(
    asynclock_servers: StartServers, connect: Connect, how: str, moved: float
) -> None:
    """Fences rest on the clocks then, and fall if these are moved.

    clocks_set_back: all of them, after two restarts one by one. never_written: the same after one
    restart, if the other node was out of memory during the grant. clocks_apart: no clock is set
    back, but the clocks that a later client knows are behind the others.
    """
    need_clock_jumps()
    servers = await asynclock_servers(3, clock=True)
    if how == "clocks_apart":
        servers[0].jump_clock(-moved)
    if how == "never_written":
        await servers[1].command("CONFIG", "SET", "maxmemory", 1)
    before = await fence_of(connect, servers)
    if how == "never_written":
        assert not await servers[1].command("KEYS", "*")
        await servers[1].command("CONFIG", "SET", "maxmemory", 0)
        await servers[0].restart()
    else:
        for server in servers[:2]:
            await server.restart()
            await all_vote(connect, servers)
    for server in servers if how != "clocks_apart" else ():
        server.jump_clock(-moved)
    await servers[2].freeze()  # the only one that remembers
    after = await fence_of(connect, servers)
    assert (after > before) is not bool(moved)


@pytest.mark.parametrize("handoff", ["block", "strict"])
async def test_a_local_hand_over_right_after_all_clocks_jumped(
    asynclock_servers: StartServers,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    handoff: Literal["block", "strict"],
) -> None:
    """All keys expire at once, a rival is in, and the next local holder has a lower fence."""
    keeps_turns(monkeypatch, PATIENCE)
    need_clock_jumps()
    servers = await asynclock_servers(3, clock=True)
    urls = [server.url for server in servers]
    # The clock guard comes too late here; it would keep the strict successor waiting.
    guard = handoff == "block"
    ours = connect(*urls, ttl=60, max_ttl=60, restart_guard=False, clock_guard=guard)
    lock = ours.lock("a", handoff=handoff)
    one = await lock.acquire(timeout=PATIENCE)
    queued = [asyncio.ensure_future(lock.acquire(timeout=PATIENCE)) for _ in range(2)]
    await asyncio.sleep(0)
    await one.release()
    two = await queued[0]
    await ours.inspect("b")  # so that no reply is under way that would tell of the jump
    for server in servers:
        server.jump_clock(120)
    theirs = connect(*urls, ttl=60, max_ttl=60, restart_guard=False)
    rival = await theirs.lock("a").acquire(timeout=PATIENCE)
    await two.release()
    await asyncio.sleep(0)
    await rival.release()
    three = await queued[1]
    assert one.fence < two.fence < rival.fence
    assert (three.fence > rival.fence) is (handoff == "strict")
    with contextlib.suppress(asynclock.LeaseLostError):
        await three.release()


async def evict(server: LocalServer, key: str) -> None:
    """Make the server throw its keys away, as it does when memory is short."""
    await server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    await server.command("CONFIG", "SET", "maxmemory", 1)
    with contextlib.suppress(Exception):
        await server.command("SET", "other", "x")
    assert not await server.command("EXISTS", key)
    await server.command("CONFIG", "SET", "maxmemory", 0)


async def test_an_eviction_is_noticed_at_the_next_renewal(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """The holder isn't told: evictions on a quorum make two holders until the next renewal."""
    servers = await asynclock_servers(3)
    urls = [server.url for server in servers]
    here, there = (connect(*urls, ttl=60, max_ttl=60, restart_guard=False) for _ in range(2))
    lease = await here.lock("a").acquire(timeout=PATIENCE)
    for server in servers[:2]:
        await evict(server, "asynclock:a")
    rival = await there.lock("a").acquire(timeout=PATIENCE)
    assert (lease.held, rival.held) == (True, True)
    await until(lambda: {node.state for node in here.nodes()} == {"up"})  # one may still connect
    assert rival.fence > lease.fence, "a store that checks refuses the old holder"
    with pytest.raises(asynclock.LeaseLostError):
        await lease.extend()
    assert not lease.held
    await rival.release()
