"""What a change of the set does to the acquires that it meets, in virtual time.

One node is silent, and each message takes a moment, so each change of the record meets acquires
that are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.script import Command
from asynclock._nodes.set_guard import SetGuard, digest
from asynclock._rules.trust import Trust
from asynclock.events import Event, Voted
from asynclock.fleet import Fleet
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, Way
from tests.waiting import until

SETTINGS: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL, "node_timeout": NODE_TIMEOUT}
TRIP = 0.1
"""Seconds of a request and its reply."""
USUAL = 4 * TRIP
"""Maximum seconds of an acquire while nothing changes: a second request, and a pause before it."""


class Traffic:
    """Clients that lock and release all the time, and how long each acquire took."""

    def __init__(self, nodes: list[Any]) -> None:
        self._nodes = nodes
        self.took: list[float] = []
        self.errors: list[BaseException | None] = []

    @asynccontextmanager
    async def on(self, client: str, *names: str) -> AsyncIterator[None]:
        """Use the nodes of these names until the end of the block."""
        nodes = [node for node in self._nodes if node.name in names]
        async with asynclock.connect(*nodes, **SETTINGS) as locks:
            calls = (self._acquires, self._tries)
            tasks = [asyncio.create_task(call(locks, client)) for call in calls]
            try:
                await asyncio.sleep(1.0)
                yield
                await asyncio.sleep(1.0)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                self.errors += [
                    error for error in ended if not isinstance(error, asyncio.CancelledError)
                ]

    async def _acquires(self, locks: asynclock.LockManager, client: str) -> None:
        for number in range(1_000_000):
            began = _clock.now()
            async with locks.lock(f"{client}-a{number % 3}"):
                self.took.append(_clock.now() - began)

    async def _tries(self, locks: asynclock.LockManager, client: str) -> None:
        for number in range(1_000_000):
            began = _clock.now()
            lease = await locks.lock(f"{client}-t{number % 3}").try_acquire()
            self.took.append(_clock.now() - began)
            assert lease is not None
            await lease.release()


def test_a_step_costs_each_acquire_at_most_one_node_timeout() -> None:
    run_virtual(_steps())


def far_nodes(names: str) -> tuple[list[MemoryNode], list[Any]]:
    """Old nodes, and their addresses."""
    servers = [MemoryNode(name) for name in names]
    addresses: list[Any] = []
    for server in servers:
        server.born_ago(3600)
        way = Way()
        way.seconds = TRIP / 2
        addresses.append(MemoryEndpoint(server.name, server, way))
    return servers, addresses


async def _steps() -> None:
    servers, nodes = far_nodes("abcd")
    *old, new = nodes
    traffic = Traffic(nodes)
    async with traffic.on("old", "a", "b", "c"):
        async with Fleet(*old, **SETTINGS) as fleet:
            await fleet.record()
            assert max(traffic.took) <= USUAL
            servers[2].freeze()
            await fleet.add(new)
            async with traffic.on("new", "a", "b", "c", "d"):
                pass
    async with traffic.on("newer", "a", "b", "c", "d"), Fleet(*nodes, **SETTINGS) as fleet:
        state = await fleet.finish()
        assert state.record is not None
        assert state.record.phase == "settled"
    assert traffic.errors == []
    assert len(traffic.took) > 100
    assert max(traffic.took) <= USUAL + NODE_TIMEOUT


@pytest.mark.parametrize("once", [True, False])
def test_a_reply_to_a_request_from_before_the_change_does_not_count(once: bool) -> None:
    """The node may execute it after the change, which the client has not read yet.

    So the client asks again, also in a try_acquire.
    """
    run_virtual(_change_meanwhile(once=once))


async def _change_meanwhile(*, once: bool) -> None:
    servers, nodes = far_nodes("abc")
    attempts: list[set[str]] = []

    def see(event: Event) -> None:
        if isinstance(event, Voted):
            attempts.append(set(event.votes.values()))

    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        async with locks.lock("x"):
            pass
        servers[2].freeze()
        locks.observe(see)
        lock = locks.lock("y")
        asked = asyncio.create_task(_lease(lock, once=once))
        await asyncio.sleep(TRIP / 4)  # the request is under way
        for server in servers[:2]:
            await server.command("HSET", "asynclock::#set", "accepted", "1")
        assert await asked
    first, *_, last = attempts
    assert "granted" not in first
    assert "granted" in last


async def _lease(lock: asynclock.Lock, *, once: bool) -> asynclock.Lease | None:
    return await lock.try_acquire() if once else await lock.acquire(timeout=10)


async def _knows(node: MemoryNode) -> bool:
    value, name = await node.command("HMGET", "asynclock::#set", "value", "name")
    return value is not None and name is not None


def test_a_node_that_was_met_before_the_record_is_told() -> None:
    run_virtual(_met_first())


async def _met_first() -> None:
    servers, nodes = far_nodes("abc")
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
    servers[0].kill()
    servers[0].restart(keep_data=False)
    for node in nodes[1:]:
        node._route.seconds = 2 * TRIP
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        assert await _knows(servers[0])


def test_a_node_that_was_told_on_a_connection_that_broke_is_told_again() -> None:
    run_virtual(_told_again())


async def _told_again() -> None:
    servers, nodes = far_nodes("abc")
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        server: Any = locks._engine.multiplexer.nodes[0]
        before = server.link
        servers[0].kill()
        servers[0].restart(keep_data=False)
        await until(lambda: server.link not in (None, before), every=0.001)
        nodes[0]._route.go_mute()  # what it is told now gets nowhere
        await asyncio.sleep(10)
        assert await _knows(servers[0])


def _names_given(locks: asynclock.LockManager) -> list[str]:
    """Return a list that gets the name of the connection to the first node at each change."""
    node: Any = locks._engine.multiplexer.nodes[0]
    names: list[str] = []
    ask = node.ask

    def noting(command: Command, *rest: Any, **options: Any) -> None:
        if command.args[1:2] == ("SETNAME",):
            names.append(str(command.args[2]))
        ask(command, *rest, **options)

    node.ask = noting
    return names


def test_a_node_that_came_back_empty_refuses_no_client_that_has_another_address_of_it() -> None:
    run_virtual(_tunnel())


async def _tunnel() -> None:
    servers, nodes = far_nodes("abc")
    tunnel: Any = MemoryEndpoint("tunnel", servers[2], Way())
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
    servers[2].kill()
    servers[2].restart(keep_data=False)
    async with asynclock.connect(*nodes[:2], tunnel, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        assert [node.state for node in locks.nodes()] == ["up", "up", "quarantined"]
        names = _names_given(locks)
        async with locks.lock("x", timeout=5):
            pass
        async with asynclock.connect(*nodes, **SETTINGS) as other:  # it tells the node its name
            await other.ready()
        await asyncio.sleep(2 * TTL)
        assert [node.state for node in locks.nodes()] == ["up"] * 3
        # Its connections are named after the right set, so no operator waits for this client.
        assert any(digest(("memory://a", "memory://b", "memory://c")) in name for name in names)


@pytest.mark.parametrize("empty", [1, 2])
def test_it_is_compared_before_it_votes_and_while_no_quorum_fits(empty: int) -> None:
    run_virtual(_strangers(empty))


async def _strangers(empty: int) -> None:
    """Nodes of nobody, which are as young as nodes that came back empty."""
    _, nodes = far_nodes("abc")
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
    strangers: list[Any] = [MemoryEndpoint(name, MemoryNode(name), Way()) for name in "de"[:empty]]
    own = [*nodes[:-empty], *strangers]
    locks = asynclock.connect(*own, **SETTINGS)
    try:
        if empty == 1:
            async with locks.lock("x", timeout=5):  # the stranger has no vote yet
                pass
        await asyncio.sleep(TTL)
        with pytest.raises(asynclock.ConfigurationError, match=r"a, .*://d.*the fleet uses"):
            await locks.lock("x", timeout=5).acquire()
    finally:
        await locks.aclose()


def test_the_next_comparison_is_planned_once_and_not_after_closing() -> None:
    run_virtual(_planned())


async def _planned() -> None:
    servers, nodes = far_nodes("abc")
    tunnel: Any = MemoryEndpoint("tunnel", servers[2], Way())
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
    servers[2].kill()
    servers[2].restart(keep_data=False)
    loop: Any = asyncio.get_running_loop()

    def planned() -> int:
        handles = (handle for handle in loop._scheduled if not handle.cancelled())
        return sum("_compare_again" in repr(handle) for handle in handles)

    async with asynclock.connect(*nodes[:2], tunnel, **SETTINGS) as locks:
        await locks.ready()
        for _ in range(3):
            servers[0].kill()
            servers[0].restart()
            await asyncio.sleep(0.5)
        assert planned() == 1
    assert planned() == 0


def test_a_client_that_is_refused_counts_no_earlier_reply_of_any_node() -> None:
    """Most nodes may not have told of the change yet when one has."""
    nodes: Any = [SimpleNamespace(trust=Trust(10.0), rejected=None) for _ in range(3)]
    began = _clock.now()
    SetGuard(nodes, 2, None)._refuse("this client uses other nodes")
    for node in nodes:
        assert node.rejected is not None
        assert min(node.trust.votes_from, node.trust.renews_from) >= began
