"""A server reports a flush of any of its databases to all clients: only that of ours counts."""

import asyncio

import pytest

import asynclock
from asynclock.events import Event, NodeQuarantined
from asynclock.testing import FaultProxy, LocalServer
from asynclock.testing.plugin import StartServers
from tests.engine.virtual_nodes import NODE_TIMEOUT, Nodes, start, virtual
from tests.guards.conftest import Connect
from tests.waiting import go_through, until


async def elsewhere(server: LocalServer, command: str, database: int = 1) -> None:
    """Execute a command in another database."""
    script = f"redis.call('SELECT', {database}) redis.call('SET', 'k', 'v') "
    await server.command("EVAL", f"{script} redis.call({command})", 0)


@pytest.mark.parametrize("command", ["'FLUSHDB'", "'FLUSHDB', 'ASYNC'", "'SWAPDB', 1, 2"])
@pytest.mark.parametrize("size", [1, 3])
async def test_a_flush_of_another_database_stops_no_lock(
    asynclock_servers: StartServers,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    size: int,
    command: str,
) -> None:
    servers = await asynclock_servers(size)
    seen: list[Event] = []
    urls = [server.url for server in servers]
    locks = connect(*urls, ttl=2.0, max_ttl=2.0, observers=[seen.append])
    await locks.ready(voting=True, timeout=20)
    seen.clear()
    caplog.clear()
    async with locks.lock("held") as held:
        waiting = asyncio.create_task(connect(*urls, restart_guard=False).lock("held").acquire())
        for _ in range(5):
            for server in servers:
                await elsewhere(server, command)
            async with asyncio.timeout(1.0), locks.lock("other"):
                await held.extend()
    async with asyncio.timeout(1.0):
        await waiting  # though the flush took the waiters' requests for pushes, too
    assert not [node for node in locks.nodes() if "flushed" in node.cause]
    assert not [e for e in seen if isinstance(e, NodeQuarantined) and "flushed" in e.cause]
    assert not [record for record in caplog.records if "flushed" in record.getMessage()]


@pytest.mark.parametrize("command", ["FLUSHDB", "FLUSHALL"])
async def test_a_flush_of_ours_is_noticed_at_once_by_a_client_that_holds_nothing(
    asynclock_servers: StartServers, connect: Connect, command: str
) -> None:
    (server,) = await asynclock_servers(1)
    locks = connect(server.url)
    await locks.ready(voting=True)
    await elsewhere(server, "'FLUSHDB'")
    assert locks.nodes()[0].state == "up"
    await server.command(command)
    await until(lambda: locks.nodes()[0].state == "quarantined", timeout=1.0)
    assert locks.nodes()[0].cause.startswith("its keys were flushed less than a second ago")


async def test_a_flush_between_two_connections_is_noticed(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """Though another client has been there since, and used the node."""
    (server,) = await asynclock_servers(1)
    async with FaultProxy(server) as way:
        first = connect(way.url, ttl=4.0, max_ttl=4.0)
        await go_through(first.lock("a", timeout=2))
        way.partition()
        await until(lambda: first.nodes()[0].state == "down")
        await server.flush()
        rival = await connect(server.url).lock("a").acquire(timeout=2)
        way.heal()
        await until(lambda: first.nodes()[0].state == "quarantined")
        assert "flushed, or replaced" in first.nodes()[0].cause
        assert rival.held, "too slow a machine for this test"


async def test_a_swap_of_ours_is_noticed_with_the_next_flush(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """The server reports no swap by itself."""
    (server,) = await asynclock_servers(1)
    locks = connect(server.url)
    await locks.ready(voting=True)
    await server.command("SWAPDB", 0, 1)
    assert await connect(server.url).lock("a").try_acquire()
    await elsewhere(server, "'FLUSHDB'", 3)
    await until(lambda: locks.nodes()[0].state == "quarantined", timeout=1.0)


async def test_a_client_without_a_right_to_look_takes_each_flush_for_its_own(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    (server,) = await asynclock_servers(1, users=["locks on >secret ~asynclock:a* +@all"])
    locks = connect(server.url_for("locks", "secret"))
    async with locks.lock("a", timeout=2):
        await elsewhere(server, "'FLUSHDB'")
        await until(lambda: locks.nodes()[0].state == "quarantined", timeout=1.0)
    assert "a database of its server was flushed, perhaps" in locks.nodes()[0].cause


@virtual
async def test_nothing_counts_between_the_report_and_a_late_look(on: Nodes) -> None:
    """The node stands still after the report; its first answer is to a request behind the look."""
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down")
    on.nodes[0].flush()
    on.nodes[0].freeze()
    await asyncio.sleep(NODE_TIMEOUT / 2)
    assert on.locks.nodes()[0].state == "up", "the look has no answer yet"
    asking = start(on.locks.lock("a").try_acquire())
    await asyncio.sleep(NODE_TIMEOUT * 3 / 4)
    on.nodes[0].thaw()
    with pytest.raises(asynclock.QuorumUnavailableError) as caught:
        await asking
    assert "its keys were flushed" in caught.value.nodes["memory://a"]


@virtual
async def test_a_flush_while_the_look_is_lost_with_its_connection(on: Nodes) -> None:
    on.nodes[0].flush()
    on.nodes[0].freeze()
    await asyncio.sleep(0.01)
    on.nodes[0].cut()
    on.nodes[0].thaw()
    await until(lambda: on.locks.nodes()[0].state == "quarantined", timeout=NODE_TIMEOUT)
    assert on.locks.nodes()[0].votes_in > 9
