"""What a client makes of the records that its nodes keep, and what it tells them. Virtual time."""

import asyncio
import gc
import logging
import os
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

import asynclock
from asynclock._rules.nodeset import OPEN, Copy, NodeSet
from asynclock.events import Event, Voted
from asynclock.fleet import Fleet
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL
from tests.guards.nodes import (
    ABC,
    RECORD,
    SETTINGS,
    TRIP,
    Place,
    Server,
    digest,
    far_nodes,
    keep,
    kept,
    pushed,
    recorded,
    said,
)
from tests.tables.inside import now
from tests.waiting import go_through, in_virtual_time, until

USUAL = 4 * TRIP
"""Maximum seconds of an acquire while nothing changes: a second request, and a pause before it."""
YEAR_MS = 365 * 24 * 3600 * 1000
Refused = asynclock.ConfigurationError


def states(locks: asynclock.LockManager) -> list[str]:
    return [node.state for node in locks.nodes()]


@asynccontextmanager
async def client(*nodes: Any, **settings: Any) -> AsyncIterator[asynclock.LockManager]:
    """A manager that has met its nodes and compared them."""
    async with asynclock.connect(*nodes, **{**SETTINGS, **settings}) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        yield locks


def unmet(*nodes: Any) -> aclosing[asynclock.LockManager]:
    """A manager that does not wait for its nodes, which would refuse it."""
    return aclosing(asynclock.connect(*nodes, **SETTINGS))


async def use(locks: asynclock.LockManager, timeout: float = 5.0) -> None:
    await go_through(locks.lock("x", timeout=timeout))


# ---- acquires that a change meets ----------------------------------------------------------------
# One node is silent, and each message takes a moment, so that each change meets acquires under way.
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
            began = now()
            async with locks.lock(f"{client}-a{number % 3}"):
                self.took.append(now() - began)

    async def _tries(self, locks: asynclock.LockManager, client: str) -> None:
        for number in range(1_000_000):
            began = now()
            lease = await locks.lock(f"{client}-t{number % 3}").try_acquire()
            self.took.append(now() - began)
            assert lease is not None
            await lease.release()


@in_virtual_time
async def test_a_step_costs_each_acquire_at_most_one_node_timeout() -> None:
    servers, nodes = far_nodes("abcd")
    *old, new = nodes
    traffic = Traffic(nodes)
    async with traffic.on("old", "a", "b", "c"), Fleet(*old, **SETTINGS) as fleet:
        await fleet.record()
        assert max(traffic.took) <= USUAL
        servers[2].freeze()
        await fleet.add(new)
        await go_through(traffic.on("new", "a", "b", "c", "d"))
    async with traffic.on("newer", "a", "b", "c", "d"), Fleet(*nodes, **SETTINGS) as fleet:
        state = await fleet.finish()
        assert state.record is not None
        assert state.record.phase == "settled"
    assert traffic.errors == []
    assert len(traffic.took) > 100
    assert max(traffic.took) <= USUAL + NODE_TIMEOUT


@pytest.mark.parametrize("once", [True, False])
@in_virtual_time
async def test_a_reply_to_a_request_from_before_the_change_does_not_count(once: bool) -> None:
    """The node may execute it after the change, which the client has not read yet.

    So the client asks again, also in a try_acquire.
    """
    servers, nodes = far_nodes("abc")
    attempts: list[set[str]] = []

    def see(event: Event) -> None:
        if isinstance(event, Voted):
            attempts.append(set(event.votes.values()))

    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await use(locks)
        servers[2].freeze()
        locks.observe(see)
        lock = locks.lock("y", timeout=10)
        asked = asyncio.ensure_future(lock.try_acquire() if once else lock.acquire())
        await asyncio.sleep(TRIP / 4)  # the request is under way
        for server in servers[:2]:
            await server.command("HSET", RECORD, "accepted", "1")
        assert await asked
    first, *_, last = attempts
    assert "granted" not in first
    assert "granted" in last


# ---- what nodes are told -------------------------------------------------------------------------
async def comes_back_empty(server: MemoryNode) -> None:
    server.restart(keep_data=False)


async def does_not_know_its_name(server: MemoryNode) -> None:
    number, record, _ = await kept(server)
    assert number is not None
    assert record is not None
    await keep(server, record, int(number))


async def has_an_older_record(server: MemoryNode) -> None:
    number, _, name = await kept(server)
    assert number is not None
    assert name is not None
    await keep(server, NodeSet(1, ("x", "y", "z")), int(number) - 1, "name", name)


@pytest.mark.parametrize("place", [0, 2], ids=["met first", "met last"])
@pytest.mark.parametrize("odd", [comes_back_empty, does_not_know_its_name, has_an_older_record])
@in_virtual_time
async def test_a_node_that_was_met_before_the_record_is_told(
    caplog: pytest.LogCaptureFixture, odd: Callable[[MemoryNode], Awaitable[None]], place: int
) -> None:
    """What it keeps decides nothing."""
    servers, nodes = await recorded()
    before = await kept(servers[place])
    await odd(servers[place])
    nodes[place].way.seconds = 2 * TRIP if place else TRIP / 4
    async with client(*nodes) as locks:
        await use(locks)
        await asyncio.sleep(1)
        assert await kept(servers[place]) == before
        assert int(await servers[place].command("PTTL", RECORD)) > 5 * YEAR_MS
    assert said(caplog) == []


@in_virtual_time
async def test_a_node_that_was_told_on_a_connection_that_broke_is_told_again() -> None:
    servers, nodes = await recorded()
    before = await kept(servers[0])
    async with client(*nodes):
        servers[0].restart(keep_data=False)
        opened = set(nodes[0].way.streams)
        await until(lambda: nodes[0].way.streams - opened, every=0.001)
        await until(lambda: len(nodes[0].way.streams - opened) > 1, every=0.001)
        nodes[0].way.go_mute()  # what it is told now gets nowhere
        await asyncio.sleep(10)
        assert await kept(servers[0]) == before


@in_virtual_time
async def test_a_node_that_forgets_again_and_again_is_told_each_time() -> None:
    """In full: a script's hash that is unknown would be sent again behind the next reading."""
    servers, nodes = await recorded("abc", pushed)
    async with client(*nodes):
        for _ in range(3):
            await servers[0].command("DEL", RECORD)
            servers[0].asked.clear()
            await asyncio.sleep(1)
            assert (await kept(servers[0]))[2] == "memory://a"
            (told,) = (words for words in servers[0].asked if RECORD.encode() in words[3:4])
            assert told[0] == b"EVAL"


@in_virtual_time
async def test_a_node_that_cannot_be_told_is_not_told_without_end() -> None:
    servers, nodes = await recorded("abc", pushed)
    await servers[0].command("DEL", RECORD)
    servers[0].instead[b"EVAL"] = lambda _words: ReplyError("ERR not here")
    servers[0].asked.clear()
    async with client(*nodes):
        await asyncio.sleep(4)
    told = [words for words in servers[0].asked_for("EVAL") if RECORD.encode() in words]
    assert 1 <= len(told) <= 12, "once on a connection"


@in_virtual_time
async def test_a_node_of_the_other_set_of_a_step_is_told_as_well() -> None:
    _, nodes = await recorded()
    (new,), (node,) = far_nodes("d")
    async with Fleet(*nodes, **SETTINGS) as fleet:
        state = await fleet.add(node)
        assert state.record is not None
        assert state.record.phase == OPEN
    before = await kept(new)
    await new.command("DEL", RECORD)
    async with client(*nodes, node):
        assert await kept(new) == before


@in_virtual_time
async def test_a_node_with_another_address_that_came_back_empty_keeps_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers, nodes = await recorded()
    async with client(*nodes[:2], Place(servers[2], name="tunnel")) as locks:
        servers[2].restart(keep_data=False)
        await asyncio.sleep(1)
        assert (await kept(servers[2]))[2] == "memory://c"
        await asyncio.sleep(2 * TTL)
        await use(locks)
        assert states(locks) == ["up"] * 3
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ([b"7", b"text", b"name"], Copy(7, "text", "name")),
        ([b"7", b"text", None], Copy(7, "text", "")),
        ([None, None, None], Copy()),
        ([b"many", b"text", b"name"], Copy()),
        ([b"7", b"\xff", b"name"], Copy(7, "\ufffd", "name")),
        (ReplyError("NOPERM no right"), Copy()),
    ],
)
@in_virtual_time
async def test_what_a_node_keeps_is_read_whatever_it_replies(reply: Any, found: Copy) -> None:
    (server,), nodes = pushed("a")
    server.instead[b"HMGET"] = lambda _words: reply
    async with Fleet(*nodes, **SETTINGS) as fleet:
        assert (await fleet.show()).newest == found


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        pytest.param(None, f"{socket.gethostname()}:{os.getpid()}", id="no label"),
        pytest.param("my service ü", "my-service--", id="other letters"),
        pytest.param("x" * 101, "x" * 100, id="long"),
    ],
)
@in_virtual_time
async def test_connections_are_named_after_set_and_client(label: str | None, shown: str) -> None:
    """Once, whatever the order of the nodes."""
    servers, nodes = await recorded("abc", pushed)
    for order in (nodes, nodes[::-1]):
        for server in servers:
            server.asked.clear()
        async with client(*order, label=label):
            assert [names(server) for server in servers] == [[f"{digest(ABC)}:{shown}"]] * 3


def names(server: Server) -> list[str]:
    """Return the names that a server's connections were given."""
    asked = server.asked_for("CLIENT", "SETNAME")
    return [words[2].decode().removeprefix("asynclock:") for words in asked]


# ---- who is refused ------------------------------------------------------------------------------
@in_virtual_time
async def test_a_client_is_compared_though_one_of_its_nodes_is_down() -> None:
    _, nodes = await recorded()
    strangers, others = far_nodes("de")
    strangers[1].kill()
    async with unmet(nodes[0], *others) as locks:
        with pytest.raises(Refused, match="the fleet uses"):
            await use(locks)
        await asyncio.sleep(1)
    assert await kept(strangers[0]) == (None, None, None), "a node of nobody is told nothing"


@pytest.mark.parametrize(("names", "told"), [("a", 0), ("abc", 1)])
@in_virtual_time
async def test_only_a_fleet_is_told_that_it_has_no_record(
    caplog: pytest.LogCaptureFixture, names: str, told: int
) -> None:
    """A single node has no set that could differ (docs/decisions/0025)."""
    caplog.set_level(logging.INFO, "asynclock.fleet")
    async with client(*far_nodes(names)[1]) as locks:
        await use(locks)
    assert len(texts := said(caplog, logging.INFO)) == told
    assert all("`asynclock nodes record` writes one" in text for text in texts)
    assert said(caplog, logging.WARNING) == []


@in_virtual_time
async def test_a_client_without_the_guard_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    _, nodes = await recorded()
    caplog.clear()
    caplog.set_level(logging.INFO, "asynclock.fleet")
    async with client(nodes[0], *far_nodes("de")[1], set_guard=False) as locks:
        await use(locks)
    assert [one for one in caplog.records if one.name == "asynclock.fleet"] == []


@in_virtual_time
async def test_a_refused_client_is_allowed_by_a_new_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its connections stay. Each change is told once."""
    caplog.set_level(logging.INFO, "asynclock.fleet")
    _, nodes = await recorded()
    _, (new, other) = far_nodes("de")
    async with Fleet(*nodes, **SETTINGS) as fleet, unmet(*nodes, new) as early:
        with pytest.raises(Refused, match="epoch 1"):
            await use(early)
        await fleet.add(other)  # a step that this client has no part in
        await asyncio.sleep(1)
        assert "(epoch 2)" in early.nodes()[0].cause
        with pytest.raises(Refused, match="epoch 2"):
            await use(early)
        await fleet.back(force=True)
        await asyncio.sleep(1)
        assert len(said(caplog)) == 3, "one for each epoch"
        await fleet.add(new)
        await until(lambda: states(early) == ["up"] * 4, timeout=5)
        await use(early)
    allowed = [text for text in said(caplog, logging.INFO) if "again" in text]
    assert allowed == ["the fleet's record allows this client's nodes again"]


@in_virtual_time
async def test_only_the_refusal_itself_is_taken_back() -> None:
    """Not what else rules a node out."""
    servers, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        await fleet.record()
        servers[1].info["role"] = "slave"
        async with unmet(*nodes) as locks:
            with pytest.raises(Refused, match="the fleet uses"):
                await use(locks)
            await asyncio.sleep(1)
            for epoch in (2, 3):
                await asyncio.sleep(1)
                await keep_all(servers, NodeSet(epoch, ABC), epoch)
            await asyncio.sleep(1)
            assert states(locks) == ["rejected"] * 4
            causes = ["epoch 3" in node.cause for node in locks.nodes()]
            assert causes == [True, False, True, True]
            await keep_all(servers, NodeSet(4, (*ABC, "memory://d")), 4)
            await until(lambda: "up" in states(locks))
            assert states(locks) == ["up", "rejected", "up", "up"]
            assert "not a primary" in locks.nodes()[1].cause


async def keep_all(servers: list[Server], record: NodeSet, epoch: int) -> None:
    for server in servers:
        await server.command("HSET", RECORD, "accepted", 2**52 + epoch, "value", record.text())


@in_virtual_time
async def test_a_first_record_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    servers, nodes = far_nodes("abcd")
    for server in servers[:3]:
        await keep(server, NodeSet(0, ABC), 7)
    async with client(*nodes) as locks:
        await use(locks)
        await asyncio.sleep(5)
        assert states(locks) == ["up"] * 4
    (text,) = said(caplog, logging.WARNING)
    assert "two clients could hold the same lock" in text
    assert said(caplog) == []


@pytest.mark.parametrize("empty", [1, 2])
@in_virtual_time
async def test_it_is_compared_before_it_votes_and_while_no_quorum_fits(empty: int) -> None:
    """Nodes of nobody, which are as young as nodes that came back empty.

    However it turns out what they are, no quorum of the others fits if they are two.
    """
    _, nodes = await recorded()
    strangers = [Place(MemoryNode(name)) for name in "de"[:empty]]
    async with unmet(*nodes[:-empty], *strangers) as locks:
        if empty == 1:  # the stranger has no vote yet
            await use(locks)
            await asyncio.sleep(TTL)
        with pytest.raises(Refused, match=r"a, .*://d.*the fleet uses"):
            await locks.ready()
            await asyncio.sleep(1)
            await use(locks)


@in_virtual_time
async def test_of_two_strangers_the_one_that_votes_first_is_compared_in_time() -> None:
    """A node timeout before it has a vote."""
    _, nodes = await recorded("abcde")
    strangers = [MemoryNode(name) for name in "xy"]
    strangers[0].born_ago(5.0)
    async with asynclock.connect(*nodes[:3], *map(Place, strangers), **SETTINGS) as locks:
        await use(locks)
        votes_in = locks.nodes()[3].votes_in
        assert 0 < votes_in < 8
        await asyncio.sleep(votes_in - NODE_TIMEOUT - 0.1)
        assert states(locks)[3] == "quarantined"
        await use(locks)
        await asyncio.sleep(0.2)
        assert states(locks)[3] == "rejected"


@in_virtual_time
async def test_a_closed_client_plans_no_comparison() -> None:
    """A timer would keep its nodes, and with them its observer."""

    class Observer:
        def __call__(self, _: Event) -> None: ...

    observer = Observer()
    found = weakref.ref(observer)
    servers, nodes = await recorded()
    servers[2] = MemoryNode("d")
    async with unmet(*nodes[:2], Place(servers[2])) as locks:
        locks.observe(observer)
        await use(locks)
        assert states(locks)[2] == "quarantined"
    for server in servers:  # which then forgets whom it would push that to
        await keep(server, NodeSet(2, ABC))
    await asyncio.sleep(1)
    del locks, nodes, observer
    gc.collect()
    assert found() is None


# ---- nodes that came back empty, which may be somebody's -----------------------------------------
@in_virtual_time
async def test_a_node_that_came_back_empty_refuses_no_client_that_has_another_address_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers, nodes = await recorded("abc", pushed)
    servers[2].restart(keep_data=False)
    async with client(*nodes[:2], Place(servers[2], name="tunnel")) as locks:
        assert states(locks) == ["up", "up", "quarantined"]
        servers[0].asked.clear()
        await use(locks)
        await go_through(client(*nodes))  # it tells the node its name
        await asyncio.sleep(2 * TTL)
        assert states(locks) == ["up"] * 3
        # Its connections are named after the right set, so no operator waits for this client.
        assert any(name.startswith(digest(ABC)) for name in names(servers[0]))
    assert said(caplog) == []


@in_virtual_time
async def test_a_client_is_not_refused_before_it_has_met_the_node_that_decides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers, nodes = await recorded()
    servers[0].restart(keep_data=False)
    nodes[2].way.seconds = 3 * TRIP
    tunnel = Place(servers[0], name="tunnel")
    async with asynclock.connect(tunnel, *nodes[1:], **SETTINGS) as locks:
        async with locks.lock("x", timeout=5):
            assert states(locks) == ["quarantined", "up", "up"]
    assert said(caplog) == []


@in_virtual_time
async def test_a_node_that_was_away_is_compared_once_back(caplog: pytest.LogCaptureFixture) -> None:
    """Its address may lead to the right node again."""
    servers, nodes = await recorded()
    servers[2].restart(keep_data=False)
    async with client(*nodes[:2], Place(servers[2], name="tunnel")) as locks:
        servers[2].kill()
        for _ in range(2):
            await asyncio.sleep(TTL)
            await use(locks)
        servers[2].restart(keep_data=False)
        await go_through(client(*nodes))  # it tells the node its name
        await asyncio.sleep(2 * TTL)
        assert states(locks) == ["up"] * 3
    assert said(caplog) == []


@in_virtual_time
async def test_nodes_that_came_back_empty_at_their_own_addresses_are_no_strangers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers, nodes = await recorded()
    for server in servers[:2]:
        server.restart(keep_data=False)
    async with client(*nodes) as locks:
        assert states(locks) == ["quarantined", "quarantined", "up"]
    assert said(caplog) == []
