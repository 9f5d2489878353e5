"""A node that may have forgotten leases does not vote until each of them has ended."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock._rules.validity import quarantine
from asynclock.events import Event, NodeQuarantined, NodeUp
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.engine.virtual_nodes import old
from tests.guards.conftest import TTL, Connect, met, second_lease
from tests.waiting import go_through, in_virtual_time, until

Prepare = Callable[..., Any]


Fault = Callable[[LocalServer], Any]
DURABLE = {"keep_data": False, "args": ("--appendonly", "yes")}
FAULTS: dict[str, tuple[Fault, str]] = {
    "restarts without its data": (lambda server: server.restart(), "started .* votes in"),
    "is durable now": (lambda server: server.restart(**DURABLE), "started .* votes in"),
    "loses its disk": (lambda server: server.restart(**DURABLE), "started .* votes in"),
    "is flushed": (lambda server: server.flush(), "its keys were flushed"),
    "has a clock that jumps": (
        lambda server: asyncio.to_thread(server.jump_clock, 120),
        r"its clock jumped by \+(119\.[5-9]|120\.[0-4])\d* s",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_node_restarts_without_its_data(
    seasoned: Prepare, cut_off: Prepare, connect: Connect, guarded: bool, fault: str
) -> None:
    """Or loses a lease's key in another way: one node votes twice (antirez, Kleppmann).

    http://antirez.com/news/77, Redlock's "crash recovery", and the first timeline of
    https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html.
    The first client has nodes 0 and 1; node 1 loses the key; the second client has 1 and 2.
    """
    servers = await seasoned(3, aof=fault == "loses its disk")
    guards = {"restart_guard": guarded, "clock_guard": guarded}
    first = connect(*await cut_off(servers, 2), **guards)
    second = connect(*[server.url for server in servers], **guards)
    await asyncio.gather(first.ready(), second.ready())
    lease = await first.lock("a", renew=False).acquire(timeout=2)
    act, cause = FAULTS[fault]
    await act(servers[1])
    if "started" in cause:
        await until(lambda: met(servers[1], 2))
    rival = await second_lease(second, "a")
    assert lease.held, "too slow a machine for this test"
    assert (rival is not None) is not guarded
    if guarded:
        health = second.nodes()[1]
        assert health.state == "quarantined"
        assert re.search(cause, health.cause), health.cause
        later = await second.lock("a").acquire(timeout=3 * TTL)
        assert not lease.held
        assert later.fence > lease.fence


async def test_a_single_node_restarts_without_its_data(
    asynclock_servers: StartServers, connect: Connect, guarded: bool
) -> None:
    (server,) = await asynclock_servers(1, args=["--hz", "10"])
    first, second = (connect(server.url, restart_guard=guarded) for _ in range(2))
    await asyncio.gather(first.ready(), second.ready())
    # A young single server votes at first contact; only a reconnect to a new process waits.
    lease = await first.lock("a", renew=False).acquire(timeout=2)
    await server.restart()
    await until(lambda: met(server, 2))
    rival = await second_lease(second, "a")
    assert lease.held, "too slow a machine for this test"
    assert (rival is not None) is not guarded


@pytest.mark.parametrize("guard", [True, False])
async def test_fences_rise_over_a_flush(
    asynclock_servers: StartServers, connect: Connect, guard: bool
) -> None:
    """With or without guards: the clock floor lies above every counter that was forgotten."""
    (server,) = await asynclock_servers(1)
    locks = connect(server.url, ttl=1.0, max_ttl=2.0, restart_guard=guard)
    async with locks.lock("a") as before:
        pass
    await server.flush()
    async with locks.lock("a") as after:
        assert after.fence > before.fence


async def test_first_contact(
    asynclock_servers: StartServers, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A young cluster waits: bounded, visible, logged with the seconds that are left."""
    servers = await asynclock_servers(3, args=["--hz", "10"])
    seen: list[Event] = []
    urls = [server.url for server in servers]
    with caplog.at_level(logging.WARNING, "asynclock.nodes"):
        locks = connect(*urls, ttl=1.0, max_ttl=2.0, observers=[seen.append])
        await locks.ready()
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await locks.lock("a").try_acquire()
    told = "too few of the nodes that answered may vote yet to decide on 'a'; a quorum may in "
    assert re.match(told + r"[12]\.\d s: ", str(caught.value))
    told = r"started (\d+ s|less than a second) ago and may have forgotten locks; votes in \d\.\d s"
    assert all(re.fullmatch(told, cause) for cause in caught.value.nodes.values())
    assert 1.0 <= caught.value.retry_after <= 2.0 * 1.01 + 0.002
    for health in locks.nodes():
        assert health.state == "quarantined"
        assert 0 < health.votes_in <= 2.0 * 1.01 + 0.002
    assert sum("it does not vote for 2.0 s" in r.getMessage() for r in caplog.records) == 3
    assert len([event for event in seen if isinstance(event, NodeQuarantined)]) == 3
    assert await connect(*urls, restart_guard=False).lock("b").try_acquire() is not None
    lease = await locks.lock("a").acquire(timeout=10)
    assert lease.held
    assert sum(node.votes_in == 0 for node in locks.nodes()) >= 2


async def test_a_durable_node_is_met_when_it_has_loaded(
    seasoned: Prepare, connect: Connect
) -> None:
    """While it loads, it says that it has no append-only file."""
    servers = await seasoned(3, aof=True)
    locks = connect(*[server.url for server in servers], ttl=60, max_ttl=60)
    await locks.ready()
    await servers[1].command("DEBUG", "POPULATE", "5000")
    await servers[1].command("BGREWRITEAOF")

    async def written() -> bool:
        return "aof_rewrite_in_progress:0" in await servers[1].command("INFO", "persistence")

    await until(written, "the file is not written again")
    restarting = asyncio.create_task(
        servers[1].restart(
            args=("--key-load-delay", "200", "--loading-process-events-interval-bytes", "1024")
        )
    )
    await until(lambda: "LOADING" in locks.nodes()[1].cause, "nobody met it while it loaded")
    assert locks.nodes()[1].state == "down"
    await restarting
    await until(lambda: locks.nodes()[1].state == "up", "it is not met again")
    assert [node.votes_in for node in locks.nodes()] == [0, 0, 0]


async def test_a_node_with_a_long_script_is_met_after_it(
    seasoned: Prepare, connect: Connect
) -> None:
    """It does not say when it started, but that is no sign that it may have forgotten locks."""
    servers = await seasoned(3, args=["--lua-time-limit", "50"])
    endless = asyncio.create_task(servers[1].command("EVAL", "while true do end", "0", timeout=60))
    locks = connect(*[server.url for server in servers], ttl=60, max_ttl=60)
    await locks.ready()
    await until(lambda: "BUSY" in locks.nodes()[1].cause, "nobody met it while it was busy")
    assert locks.nodes()[1].state == "down"
    await servers[1].command("SCRIPT", "KILL")
    await asyncio.wait([endless])
    await until(lambda: locks.nodes()[1].state == "up", "it is not met again")
    assert [node.votes_in for node in locks.nodes()] == [0, 0, 0]


D = quarantine(10.0)


@pytest.mark.parametrize(
    ("durable", "dead", "mute", "waits"),
    [
        pytest.param(False, 0.01, 0.0, D, id="at once"),
        # The longest ttl minus what it has surely been up: 3 s may be 1 s.
        pytest.param(False, 0.0, 3.0, D - 1.0, id="met late"),
        pytest.param(True, 1.0, 0.0, 0.0, id="durable"),
        # A process in between, which kept nothing, would have had the time to grant.
        pytest.param(True, D + 0.1, 0.0, D, id="durable and away for long"),
    ],
)
@in_virtual_time
async def test_a_process_met_late_waits_only_for_the_rest(
    *, durable: bool, dead: float, mute: float, waits: float
) -> None:
    on = old("a")
    (node,) = on.nodes
    node.durable = durable
    async with on.connect() as locks:
        await go_through(locks.lock("a"))
        seen: list[Event] = []
        locks.observe(seen.append)
        node.kill()
        await asyncio.sleep(dead)
        node.restart()
        if mute:
            node.freeze()
            await asyncio.sleep(mute)
            node.thaw()
        await until(lambda: any(isinstance(one, NodeUp | NodeQuarantined) for one in seen))
        assert locks.nodes()[0].votes_in == pytest.approx(waits, abs=0.1)


async def test_where_info_is_forbidden(asynclock_servers: StartServers, connect: Connect) -> None:
    """A node without a run_id counts as restarted at every connection."""
    users = ["locker on >secret ~* &* +@all -info"]
    servers = await asynclock_servers(3, users=users)
    urls = [server.url_for("locker", "secret") for server in servers]
    locks = connect(*urls, ttl=1.0, max_ttl=2.0)
    await locks.ready()
    with pytest.raises(asynclock.QuorumUnavailableError, match="does not say when it started"):
        await locks.lock("a").try_acquire()
    async with locks.lock("a").acquire(timeout=10) as lease:
        assert lease.held
    alone = connect(urls[0], ttl=1.0, max_ttl=2.0)
    assert await alone.lock("b").try_acquire() is not None  # first contact is free on one node
    await servers[0].command("CLIENT", "KILL", "TYPE", "normal")
    await until(lambda: alone.nodes()[0].state == "quarantined")
