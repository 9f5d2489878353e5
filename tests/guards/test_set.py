"""Clients whose nodes are not those that the fleet's record names."""

import asyncio

import pytest

import asynclock
from asynclock import events as events_of
from asynclock.fleet import Fleet
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.guards.conftest import Connect
from tests.waiting import becomes, go_through, until

QUICK = {"ttl": 2.0, "max_ttl": 2.0, "node_timeout": 0.5, "restart_guard": False}


def urls(*servers: LocalServer) -> list[str]:
    return [server.url for server in servers]


def fleet(*servers: LocalServer) -> Fleet:
    return Fleet(*urls(*servers), **QUICK)


async def recorded(*servers: LocalServer, force: bool = False) -> None:
    async with fleet(*servers) as one:
        await one.record(force=force)


async def test_a_client_with_other_nodes_is_refused(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    servers = await asynclock_servers(5)
    a, b, c, d, e = servers
    await recorded(a, b, c)
    events: list[events_of.Event] = []
    wrong = connect(*urls(a, d, e), **QUICK, observers=[events.append])
    with pytest.raises(asynclock.ConfigurationError, match=r"fleet uses .*epoch 1") as caught:
        await wrong.lock("x").acquire(timeout=5)
    failed = [one for one in events if isinstance(one, events_of.Failed)]
    assert [(one.name, one.outcome) for one in failed] == [("x", "error")]
    events.clear()
    with pytest.raises(asynclock.ConfigurationError, match="the fleet uses"):
        await wrong.ready()
    assert not [one for one in events if isinstance(one, events_of.Failed)], "nothing was acquired"
    for server in servers:
        assert f"{server.host}:{server.port}" in str(caught.value)
    with pytest.raises(asynclock.ConfigurationError, match="the fleet uses"):
        await connect(a.url, **QUICK).lock("x").acquire(timeout=5)
    async with connect(*urls(c, b, a), **QUICK).lock("x", timeout=5) as lease:
        assert lease.held


async def test_a_client_that_is_connected_already_is_refused_at_once(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    a, b, c, d, e = await asynclock_servers(5)
    right, wrong = connect(*urls(a, b, c), **QUICK), connect(*urls(a, d, e), **QUICK)
    held = await right.lock("held", timeout=5).acquire()
    stray = await wrong.lock("stray", timeout=5).acquire()
    assert await connect(*urls(a, d, e), **QUICK).lock("stray").try_acquire() is None
    waiting = asyncio.create_task(go_through(connect(*urls(a, d, e), **QUICK).lock("stray")))
    await recorded(a, b, c, force=True)
    await until(lambda: wrong.nodes()[0].state == "rejected")
    with pytest.raises(asynclock.ConfigurationError, match="the fleet uses"):
        await wrong.lock("y").try_acquire()
    with pytest.raises(asynclock.ConfigurationError, match="the fleet uses"):
        await waiting
    await stray.wait_lost()  # its renewals don't count any more
    assert held.held
    await held.release()


async def test_forgetful_nodes_are_told_again(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """By each client that knows the record, without any command, before the node votes."""
    a, b, c = await asynclock_servers(3)
    await recorded(a, b, c)
    locks = connect(*urls(a, b, c), **QUICK)
    await go_through(locks.lock("x", timeout=5))
    await until(lambda: all(node.state == "up" for node in locks.nodes()))
    key = "asynclock::#set"
    for forget in (a.flush, lambda: a.restart(keep_data=False), lambda: a.command("DEL", key)):
        before = await a.command("HGETALL", key)
        await forget()
        await becomes(lambda: a.command("HGET", key, "name"), f"{a.host}:{a.port}", timeout=10)
        assert before
        assert await a.command("HGET", key, "value") == await b.command("HGET", key, "value")


async def test_a_client_without_pushes_is_counted_before_clients_are_refused(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    a, b, c, d, e = await asynclock_servers(5)
    for server in (a, d, e):
        await server.command("ACL", "SETUSER", "default", "-client|tracking", "-client|caching")
    settings = {**QUICK, "max_ttl": 9.0}
    other = connect(*urls(a, d, e), **settings)
    await go_through(other.lock("x", timeout=5))
    async with Fleet(*urls(a, b, c), **settings) as one:
        with pytest.raises(asynclock.ConfigurationError, match="1 connected clients still use"):
            await one.record()
    async with other.lock("x", timeout=5) as lease:
        assert lease.held
