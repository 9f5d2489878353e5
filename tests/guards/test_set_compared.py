"""What a client makes of the records that its nodes keep, and what it tells them. Virtual time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes import record
from asynclock._nodes.replies import Failure
from asynclock._nodes.set_guard import SetGuard, digest
from asynclock._rules.nodeset import OPEN, Kept, NodeSet
from asynclock._rules.trust import Trust
from asynclock.fleet import Fleet
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import Way
from tests.guards.test_set_in_time import SETTINGS, TRIP, far_nodes
from tests.nodes.virtual_servers import Server
from tests.waiting import in_virtual_time, until

KEY = "asynclock::#set"
YEAR_MS = 365 * 24 * 3600 * 1000


async def kept(node: MemoryNode) -> list[Any]:
    """Return the number, the set and the name that a node keeps."""
    number, value, name = await node.command("HMGET", KEY, "accepted", "value", "name")
    found = NodeSet.parse(value)
    return [number, None if found is None else found.nodes, name]


async def keep(node: MemoryNode, number: int, nodes: str, *more: str) -> None:
    """Let a node keep another record."""
    text = NodeSet(1, tuple(f"memory://{name}" for name in nodes)).text()
    await node.command("DEL", KEY)
    await node.command("HSET", KEY, "promised", number, "accepted", number, "value", text, *more)


async def recorded(names: str = "abc") -> tuple[list[MemoryNode], list[Any]]:
    servers, nodes = far_nodes(names)
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
    return servers, nodes


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    found = [one for one in caplog.records if one.name == "asynclock.fleet"]
    return [one.message for one in found if one.levelno == level]


@pytest.mark.parametrize("place", [0, 2])
@in_virtual_time
async def test_an_older_record_decides_nothing_and_is_replaced(
    caplog: pytest.LogCaptureFixture, place: int
) -> None:
    """Whether its node is the first or the last that is met."""
    servers, nodes = await recorded()
    number = int((await kept(servers[1]))[0])
    await keep(servers[place], number - 1, "xyz", "name", f"memory://{'abc'[place]}")
    for node in nodes:
        node._route.seconds = TRIP
    nodes[place]._route.seconds = 2 * TRIP if place else TRIP / 2
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        async with locks.lock("x", timeout=5):
            await asyncio.sleep(2)
        found, newest = await kept(servers[place]), await kept(servers[1])
        assert found[:2] == newest[:2]
        assert found[2] == f"memory://{'abc'[place]}"
        assert int(await servers[place].command("PTTL", KEY)) > YEAR_MS
    assert said(caplog, logging.ERROR) == []


@in_virtual_time
async def test_a_client_is_compared_though_one_of_its_nodes_is_down() -> None:
    _, nodes = await recorded()
    strangers, others = far_nodes("de")
    strangers[1].kill()
    locks = asynclock.connect(nodes[0], *others, **SETTINGS)
    with pytest.raises(asynclock.ConfigurationError, match="the fleet uses"):
        await locks.lock("x").acquire(timeout=5)
    await asyncio.sleep(1)
    assert await kept(strangers[0]) == [None, None, None], "a node of nobody is told nothing"
    await locks.aclose()


@in_virtual_time
async def test_a_client_of_strangers_is_refused_before_they_vote() -> None:
    """However it turns out what they are, no quorum of the others fits."""
    _, nodes = await recorded()
    strangers: list[Any] = [MemoryEndpoint(name, MemoryNode(name), Way()) for name in "xy"]
    locks = asynclock.connect(nodes[0], *strangers, **SETTINGS)
    with pytest.raises(asynclock.ConfigurationError, match="the fleet uses"):
        await locks.ready()
        await asyncio.sleep(1)
        await locks.lock("x").acquire(timeout=1)
    await locks.aclose()


@in_virtual_time
async def test_a_node_with_another_address_that_came_back_empty_keeps_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers, nodes = await recorded()
    tunnel: Any = MemoryEndpoint("tunnel", servers[2], Way())
    async with asynclock.connect(*nodes[:2], tunnel, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        servers[2].restart(keep_data=False)
        await asyncio.sleep(1)
        assert (await kept(servers[2]))[2] == "memory://c"
        await asyncio.sleep(2 * SETTINGS["ttl"])
        async with locks.lock("x", timeout=5):
            assert [node.state for node in locks.nodes()] == ["up"] * 3
    assert said(caplog, logging.ERROR) == []


@pytest.mark.parametrize(("names", "told"), [("a", 0), ("abc", 1)])
@in_virtual_time
async def test_only_a_fleet_is_told_that_it_has_no_record(
    caplog: pytest.LogCaptureFixture, names: str, told: int
) -> None:
    caplog.set_level(logging.INFO, "asynclock.fleet")
    _, nodes = far_nodes(names)
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        async with locks.lock("x", timeout=5):
            await asyncio.sleep(1)
    assert len(said(caplog, logging.INFO)) == told


@in_virtual_time
async def test_a_client_with_the_guard_off_is_not_compared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, nodes = await recorded()
    _, others = far_nodes("de")
    caplog.clear()
    caplog.set_level(logging.INFO, "asynclock.fleet")
    async with asynclock.connect(nodes[0], *others, set_guard=False, **SETTINGS) as locks:
        async with locks.lock("x", timeout=5):
            await asyncio.sleep(1)
    assert [one for one in caplog.records if one.name == "asynclock.fleet"] == []


@in_virtual_time
async def test_a_refused_client_is_allowed_again_when_the_record_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its connections stay. Each change is told once."""
    caplog.set_level(logging.INFO, "asynclock.fleet")
    _, nodes = await recorded("abc")
    _, (new, other) = far_nodes("de")
    async with Fleet(*nodes, **SETTINGS) as fleet:
        early = asynclock.connect(*nodes, new, **SETTINGS)
        with pytest.raises(asynclock.ConfigurationError, match="epoch 1"):
            await early.lock("x").acquire(timeout=5)
        await fleet.add(other)  # a step that this client has no part in
        await asyncio.sleep(1)
        assert "(epoch 2)" in early.nodes()[0].cause
        with pytest.raises(asynclock.ConfigurationError, match="epoch 2"):
            await early.lock("x").acquire(timeout=5)
        await fleet.back(force=True)
        await asyncio.sleep(1)
        assert len(said(caplog, logging.ERROR)) == 3, "one for each epoch"
        await fleet.add(new)
        await until(lambda: [node.state for node in early.nodes()] == ["up"] * 4, timeout=5)
        async with early.lock("x", timeout=5) as lease:
            assert lease.held
        await early.aclose()
    allowed = [text for text in said(caplog, logging.INFO) if "again" in text]
    assert allowed == ["the fleet's record allows this client's nodes again"]


@in_virtual_time
async def test_a_first_record_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    servers, nodes = far_nodes("abcd")
    for server in servers[:3]:
        text = NodeSet(0, ("memory://a", "memory://b", "memory://c")).text()
        await server.command("HSET", KEY, "promised", 7, "accepted", 7, "value", text)
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        async with locks.lock("x", timeout=5):
            await asyncio.sleep(5)
        assert {node.state for node in locks.nodes()} == {"up"}
    (text,) = said(caplog, logging.WARNING)
    assert "two clients could hold the same lock" in text
    assert said(caplog, logging.ERROR) == []


def test_only_the_refusal_itself_is_taken_back() -> None:
    """Not what else rules a node out."""
    twice = Failure("the same server twice", permanent=True)
    nodes: Any = [SimpleNamespace(trust=Trust(10.0), rejected=None) for _ in range(3)]
    nodes[1].rejected = twice
    guard = SetGuard(nodes, 2, None)
    for text in ("epoch 1", "epoch 2"):
        guard._refuse(text)
        assert [node.rejected.cause for node in nodes] == [text, twice.cause, text]
    guard._allow()
    assert [node.rejected for node in nodes] == [None, twice, None]
    assert guard.error is None


@in_virtual_time
async def test_a_node_that_forgets_again_and_again_is_told_each_time() -> None:
    servers, nodes = await recorded()
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        for _ in range(3):
            await servers[0].command("DEL", KEY)
            await asyncio.sleep(1)
            assert (await kept(servers[0]))[2] == "memory://a"


@pytest.mark.parametrize("place", [0, 2])
@in_virtual_time
async def test_a_node_that_does_not_know_its_name_is_told(place: int) -> None:
    """Whether it is the first or the last that is met."""
    servers, nodes = await recorded()
    number, *_ = await kept(servers[1])
    await keep(servers[place], int(number), "abc")
    nodes[place]._route.seconds = 2 * TRIP if place else TRIP / 4
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        names = tuple(f"memory://{name}" for name in "abc")
        assert await kept(servers[place]) == [number, names, names[place]]


@in_virtual_time
async def test_a_node_of_the_other_set_of_a_step_is_told_as_well() -> None:
    servers, nodes = await recorded("abc")
    (new,), (node,) = far_nodes("d")
    async with Fleet(*nodes, **SETTINGS) as fleet:
        state = await fleet.add(node)
        assert state.record is not None
        assert state.record.phase == OPEN
    before = await kept(new)
    await new.command("DEL", KEY)
    async with asynclock.connect(*nodes, node, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        assert await kept(new) == before
    assert servers


@in_virtual_time
async def test_a_node_that_cannot_be_told_is_not_told_without_end() -> None:
    servers, nodes = await recorded()
    told = 0
    answer = servers[0].answer

    def refusing(client: Any, words: Any) -> Any:
        nonlocal told
        if words[0] == b"EVAL" and KEY.encode() in words:
            told += 1
            return ReplyError("ERR not here")
        return answer(client, words)

    servers[0].answer = refusing  # type: ignore[method-assign]
    await servers[0].command("DEL", KEY)
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(5)
    assert 1 <= told <= 12, "once on a connection"


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        pytest.param(None, f"{socket.gethostname()}:{os.getpid()}", id="no label"),
        pytest.param("my service ü", "my-service--", id="other letters"),
        pytest.param("x" * 101, "x" * 100, id="long"),
    ],
)
@in_virtual_time
async def test_connections_are_named_after_the_set_and_the_client(
    label: str | None, shown: str
) -> None:
    """Whatever the order of the nodes."""
    servers = [Server(name, 1) for name in "abc"]
    nodes: list[Any] = [MemoryEndpoint(one.host, one, Way()) for one in servers]
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
    for order in (nodes, nodes[::-1]):
        for server in servers:
            server.asked.clear()
        async with asynclock.connect(*order, label=label, **SETTINGS) as locks:
            await locks.ready()
            await asyncio.sleep(1)
        used = digest(("memory://a", "memory://b", "memory://c"))
        for server in servers:
            names = {words[2].decode() for words in server.asked_for("CLIENT", "SETNAME")}
            assert names == {f"asynclock:{used}:{shown}"}


@in_virtual_time
async def test_of_two_strangers_the_one_that_votes_first_is_compared_in_time() -> None:
    """A node timeout before it has a vote."""
    _, nodes = await recorded("abcde")
    strangers = [MemoryNode(name) for name in "xy"]
    strangers[0].born_ago(5.0)
    own: list[Any] = [MemoryEndpoint(one.name, one, Way()) for one in strangers]
    async with asynclock.connect(*nodes[:3], *own, **SETTINGS) as locks:
        async with locks.lock("x", timeout=2):
            pass
        first: Any = locks._engine.multiplexer.nodes[3]
        votes_from = first.votes_from
        assert votes_from - _clock.now() < 8
        margin = SETTINGS["node_timeout"]
        await asyncio.sleep(votes_from - margin - 0.1 - _clock.now())
        assert first.state(_clock.now()) == "quarantined"
        async with locks.lock("x", timeout=2):
            pass
        await asyncio.sleep(votes_from - margin + 0.1 - _clock.now())
        assert first.state(_clock.now()) == "rejected"


async def test_a_node_takes_a_record_that_nobody_has_overtaken() -> None:
    node = MemoryNode()

    async def told(number: int, value: str, name: str) -> Any:
        words = (number, value, name, 90_000)
        return await node.command("EVAL", record.SCRIPT.source, 1, "r", *words)

    async def state() -> list[str]:
        found: list[str] = await node.command(
            "HMGET", "r", "promised", "by", "accepted", "value", "name"
        )
        return found

    assert await told(5, "five", "a") == 1
    assert await state() == ["5", "-", "5", "five", "a"]
    assert 80_000 < await node.command("PTTL", "r") <= 90_000
    assert await told(5, "five", "b") == 1, "it has another name since"
    assert await state() == ["5", "-", "5", "five", "b"]
    assert await told(4, "four", "c") == 0
    assert await state() == ["5", "-", "5", "five", "b"]
    await node.command("HSET", "r", "promised", "8", "by", "operator")
    for number in (6, 8):  # what an operator was promised, nobody else may write
        assert await told(number, "other", "c") == 0
        assert await state() == ["8", "operator", "5", "five", "b"]
    assert await told(9, "nine", "a") == 1
    assert await state() == ["9", "-", "9", "nine", "a"]


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ([b"7", b"text", b"name"], Kept(7, "text", "name")),
        ([b"7", b"text", None], Kept(7, "text", "")),
        ([None, None, None], Kept()),
        ([b"many", b"text", b"name"], Kept()),
        ([b"7", b"\xff", b"name"], Kept(7, "\ufffd", "name")),
        (Failure("NOPERM no right", code="NOPERM"), Kept()),
    ],
)
def test_what_a_node_keeps_is_read_whatever_it_replies(reply: Any, found: Kept) -> None:
    assert record.kept(reply) == found


def test_telling_needs_no_script_at_the_node() -> None:
    """Sent again after a NOSCRIPT, it would come after the reading behind it."""
    command = record.telling("r", Kept(7, "text"), "me")
    assert command.sourced
    assert int(command.args[3]) > 5 * YEAR_MS
