"""What the steps of a fleet wait for, and what its state tells. In virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._inspect.fleet_state import Client, NodeState, clients_of, state_of
from asynclock._nodes.heartbeat import HALF_OPEN
from asynclock._nodes.replies import Failure
from asynclock._nodes.set_guard import digest
from asynclock._rules.nodeset import CLOSING, OPEN, SETTLED, Kept, NodeSet
from asynclock._rules.validity import quarantine
from asynclock.fleet import Fleet
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.memory.keyspace import ReplyError, Words
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, Way
from tests.guards.test_set_in_time import SETTINGS, far_nodes
from tests.nodes.virtual_servers import Server
from tests.waiting import in_virtual_time

ABC, ABCD = ("a", "b", "c"), ("a", "b", "c", "d")
POLL = TTL / 3 + HALF_OPEN * NODE_TIMEOUT
"""Maximum seconds until a client without pushes has asked: it looks at its timer that often."""


class Pushing(Server):
    """A server that lists a client which gets pushes, or others that a test names."""

    clients = b"id=1 name= flags=t\n"

    def answer(self, client: Any, words: Words) -> Any:
        listing = words[:2] == (b"CLIENT", b"LIST")
        return self.clients if listing else super().answer(client, words)


def pushed(names: str) -> tuple[list[Pushing], list[Any]]:
    """Old nodes whose clients get pushes."""
    servers = [Pushing(name, 1) for name in names]
    places: list[Any] = [MemoryEndpoint(one.host, one, Way()) for one in servers]
    return servers, places


@in_virtual_time
async def test_clients_get_a_second_to_read_the_first_record() -> None:
    """Where some get no pushes, until each has asked."""
    for nodes, longest in ((pushed("abc")[1], 0.0), (far_nodes("abc")[1], POLL)):
        async with Fleet(*nodes, **SETTINGS) as fleet:
            began = _clock.now()
            state = await fleet.record()
            assert 1.0 + longest <= _clock.now() - began < 1.0 + longest + 4
            assert state.silent is bool(longest)
            assert state.record is not None
            assert (state.record.epoch, state.record.phase) == (1, SETTLED)


@pytest.mark.parametrize("end", ["finish", "back"])
@in_virtual_time
async def test_a_step_ends_when_no_client_of_the_other_set_can_hold_a_lease(end: str) -> None:
    said: list[str] = []
    _, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS, progress=said.append) as fleet:
        await fleet.record()
        await fleet.add(nodes[3])
        began = _clock.now()
        state = await (fleet.finish() if end == "finish" else fleet.back())
        # A lease of the other set may have begun when the last client had read the change.
        assert _clock.now() - began >= quarantine(TTL) + POLL + NODE_TIMEOUT
        assert state.record is not None
        assert state.record.phase == SETTLED
        assert len(state.record.nodes) == (4 if end == "finish" else 3)
        waits = round(quarantine(TTL) + POLL + NODE_TIMEOUT)
        assert said == [f"waiting {waits} s until no client of the other set holds a lease"]


@in_virtual_time
async def test_a_young_node_is_added_once_it_can_vote() -> None:
    """And it is told the record and its name at once, before any client meets it."""
    said: list[str] = []
    _, nodes = far_nodes("abc")
    young = MemoryNode("d")
    place: Any = MemoryEndpoint("d", young, Way())
    async with Fleet(*nodes, **SETTINGS, progress=said.append) as fleet:
        await fleet.record()
        young.born_ago(0)
        began = _clock.now()
        state = await fleet.add(place)
        assert _clock.now() - began >= quarantine(TTL) - 0.1
        assert said == ["waiting 10 s until memory://d can vote"]
        assert state.record is not None
        assert (state.record.phase, state.record.other[-1]) == (OPEN, "memory://d")
    value, name = await young.command("HMGET", "asynclock::#set", "value", "name")
    assert NodeSet.parse(value) == state.record
    assert name == "memory://d"


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("down", "can't be added: .*down"), ("replica", "can't be added: it is a replica")],
)
@in_virtual_time
async def test_a_node_that_cannot_vote_is_not_added(fault: str, cause: str) -> None:
    _, nodes = pushed("abc")
    (new,), (place,) = pushed("d")
    if fault == "down":
        new.kill()
    else:
        new.info["role"] = "slave"
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
        with pytest.raises(asynclock.ConfigurationError, match=cause):
            await fleet.add(place)
        record = (await fleet.show()).record
        assert record is not None
        assert record.phase == SETTLED


@in_virtual_time
async def test_a_dead_node_is_removed_by_its_name() -> None:
    servers, nodes = pushed("abcd")
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
        servers[3].kill()
        with pytest.raises(asynclock.ConfigurationError, match="is not one of"):
            await fleet.remove("redis://127.0.0.1:7")
        state = await fleet.remove("memory://d")
        assert state.record is not None
        assert state.record.other == ("memory://a", "memory://b", "memory://c")
        assert [node.node for node in state.lagging] == ["memory://d"]


@in_virtual_time
async def test_connected_clients_of_another_set_are_not_refused_by_surprise() -> None:
    servers, nodes = pushed("abcd")
    names = [f"memory://{name}" for name in "abcd"]

    def used(*nodes: str) -> None:
        """Let all nodes list one client with these nodes."""
        for server in servers:
            server.clients = named(f"{digest(nodes)}:host:7")

    async def refused(call: Any) -> NodeSet:
        with pytest.raises(asynclock.ConfigurationError, match=r"1 connected .*'host:7'"):
            await call
        record = (await fleet.show()).record
        assert record is not None
        return record

    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        used(*names)
        record = await refused(fleet.record())
        assert record == NodeSet(0, tuple(names[:3])), "clients that differ are warned only"
        used(*names[:3])
        assert (await fleet.record()).record == NodeSet(1, tuple(names[:3]))
        await fleet.add(nodes[3])
        assert (await refused(fleet.finish())).phase == OPEN
        used(*names)
        assert (await refused(fleet.back())).phase == OPEN
        state = await fleet.back(force=True)
        assert state.record == NodeSet(3, tuple(names[:3]))


@pytest.mark.parametrize(
    "nodes", [("redis+cluster://a:1",), ("redis://a:1", "redis+cluster://b:1")]
)
def test_a_cluster_has_no_set_that_steps_could_change(nodes: tuple[str, ...]) -> None:
    with pytest.raises(asynclock.UnsupportedDeploymentError, match="a Cluster keeps no record"):
        Fleet(*nodes)


@in_virtual_time
async def test_an_operator_may_look_at_any_nodes_and_change_only_the_fleets() -> None:
    """The guard is off for the tool itself, which would be refused like any client."""
    _, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        await fleet.record()
    settings: dict[str, Any] = {**SETTINGS, "set_guard": True}
    async with Fleet(*nodes, **settings) as other:
        state = await other.show()
        assert state.record is not None
        assert len(state.names) == 4
        with pytest.raises(asynclock.ConfigurationError, match="the record"):
            await other.record()
        with pytest.raises(asynclock.ConfigurationError, match="the record"):
            await other.remove("memory://d")


def named(*uses: str) -> bytes:
    """A reply to CLIENT LIST with connections that are named after sets."""
    lines = [f"id={n} addr=h:1 name=asynclock:{one} flags=t" for n, one in enumerate(uses)]
    return "\n".join([*lines, "id=9 name= flags=t", "id=10 name=other flags=t"]).encode()


@pytest.mark.parametrize(
    ("record", "uses"),
    [
        (None, ["other"] * 3),
        (NodeSet(1, ABC), ["same", "other", "other"]),
        (NodeSet(2, ABC, ABCD, OPEN), ["old", "new", "other"]),
        (NodeSet(3, ABCD, ABC, CLOSING), ["old", "same", "other"]),
        (NodeSet(3, ABC, ABCD, CLOSING), ["same", "old", "other"]),
    ],
)
def test_which_set_a_client_uses(record: NodeSet | None, uses: list[str]) -> None:
    """Each client once, though it has a connection to each node, in the order of the labels."""
    names = [f"{digest(nodes)}:host:{n}" for n, nodes in enumerate((ABC, ABCD, ("x", "y", "z")))]
    listed = [Failure("no answer"), named(*names), named(*names[::-1])]
    found = clients_of(record, listed)
    assert found == tuple(Client(f"host:{n}", one) for n, one in enumerate(uses))


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        (b"id=1 name=asynclock:x:host=7:1 flags=t", ["host=7:1"]),
        (b"id=1 name=asynclock:x:\xff flags=t", ["\ufffd"]),
        (b"id=1 name=my-asynclock:x:host:1 flags=t", []),
        (b"id=1 name=asynclock:x:host:1 odd flags=t", ["host:1"]),
    ],
    ids=["a mark in the label", "no text", "of another program", "a word without a value"],
)
def test_names_of_connections_are_untrusted(line: bytes, labels: list[str]) -> None:
    found = clients_of(None, [line])
    assert found == tuple(Client(label, "other") for label in labels)


def test_where_no_node_lists_its_clients_nobody_knows_them() -> None:
    assert clients_of(None, [Failure("NOPERM no right"), Failure("no answer")]) is None
    assert clients_of(None, [b"", Failure("no answer")]) == ()


def test_the_state_of_each_node() -> None:
    nodes: Any = [SimpleNamespace(address=name) for name in "pqrs"]
    newest, older = NodeSet(4, ABC).text(), NodeSet(3, ABCD).text()
    found = [
        [b"8", newest.encode(), b"a"],
        [b"7", older.encode(), None],
        [None, None, None],
        Failure("no answer"),
    ]
    state = state_of(nodes, found, [named("x:one")])
    assert state.nodes == (
        NodeState("p", "a", 4, 8, named=True, cause=None),
        NodeState("q", "q", 3, 7, named=False, cause=None),
        NodeState("r", "r", None, 0, named=False, cause=None),
        NodeState("s", "s", None, 0, named=False, cause="no answer"),
    )
    assert state.record == NodeSet(4, ABC)
    assert state.newest == Kept(8, newest, "a")
    assert state.names == ("a", "q", "r", "s")
    assert [node.node for node in state.lagging] == ["q", "r", "s"]
    assert not state.silent
    assert state_of(nodes, found, [named(), b"id=1 name= flags=N"]).silent
    assert state_of(nodes[:1], [ReplyError("NOPERM")], []).record is None
    unknown = state_of(nodes[3:], [Failure("no answer")], [])
    assert [node.node for node in unknown.lagging] == ["s"], "whatever it keeps"
