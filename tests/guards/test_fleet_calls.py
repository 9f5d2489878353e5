"""What the calls of a fleet leave at the nodes, and what they tell afterwards. In virtual time."""

from __future__ import annotations

from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._rules.nodeset import OPEN, NodeSet
from asynclock._rules.validity import quarantine
from asynclock.fleet import Fleet
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import TTL, Way
from tests.guards.test_fleet_in_time import Pushing, pushed
from tests.guards.test_fleet_steps import ABC, ABCD, LATER, RECORD, set_of
from tests.guards.test_set_in_time import SETTINGS
from tests.waiting import in_virtual_time


async def keep(servers: list[Pushing], record: NodeSet, *names: str) -> None:
    """Let each server keep the record, and its name in it."""
    for server, name in zip(servers, names, strict=True):
        words = ("accepted", 1, "value", record.text(), "promised", 1, "name", name)
        await server.command("HSET", RECORD, *words)


async def kept(servers: list[Pushing]) -> list[tuple[NodeSet | None, str | None]]:
    """Return the record and the name that each server keeps."""
    found = [await server.command("HMGET", RECORD, "value", "name") for server in servers]
    return [(NodeSet.parse(text), name) for text, name in found]


@in_virtual_time
async def test_each_node_keeps_the_record_and_its_own_name_after_each_step() -> None:
    servers, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        for call, record in (
            (fleet.record, NodeSet(1, ABC)),
            (lambda: fleet.add(nodes[3]), NodeSet(2, ABC, ABCD, OPEN)),
            (fleet.finish, NodeSet(3, ABCD)),
        ):
            state = await call()
            assert (state.record, state.lagging) == (record, ())
            assert [node.named for node in state.nodes] == [True] * 3
            assert await kept(servers[:3]) == [(record, name) for name in ABC]
            if record.epoch == 2:
                assert await kept(servers[3:]) == [(record, "memory://d")]


@in_virtual_time
async def test_the_first_record_is_not_written_twice() -> None:
    """An operator who asks for it again, at any time later, changes nothing."""
    servers, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        await fleet.record()
        await fleet.add(nodes[3])
        assert set_of(await fleet.record()) == NodeSet(2, ABC, ABCD, OPEN)
        await fleet.finish()
    async with Fleet(*nodes, **SETTINGS) as fleet:
        assert set_of(await fleet.record()) == NodeSet(3, ABCD)
    assert await kept(servers[:3]) == [(NodeSet(3, ABCD), name) for name in ABC]


@in_virtual_time
async def test_a_node_that_missed_a_change_is_told_before_the_call_ends() -> None:
    servers, nodes = pushed("abcd")
    missing = servers[2]
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        missing.instead[b"EVALSHA"] = lambda _words: ReplyError("ERR no script, this time")
        for call, record in (
            (fleet.record, NodeSet(1, ABC)),
            (lambda: fleet.add(nodes[3]), NodeSet(2, ABC, ABCD, OPEN)),
            (fleet.finish, NodeSet(3, ABCD)),
        ):
            state = await call()
            assert state.lagging == ()
            assert await kept([missing]) == [(record, "memory://c")]


@in_virtual_time
async def test_a_node_that_lost_the_record_is_told_it_by_a_call_that_changes_nothing() -> None:
    servers, nodes = pushed("abc")
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
        await servers[2].command("DEL", RECORD)
        state = await fleet.record()
        assert (state.record, state.lagging) == (NodeSet(1, ABC), ())
        assert await kept(servers) == [(NodeSet(1, ABC), name) for name in ABC]


@in_virtual_time
async def test_a_set_that_only_one_node_knows_of_yet_is_not_overlooked() -> None:
    """An operator with the nodes of before must not begin a step from there."""
    servers, nodes = pushed("abc")
    far = Way()
    far.seconds = 0.3
    nodes[2] = MemoryEndpoint("c", servers[2], far)
    newer = NodeSet(7, ("memory://c", "memory://x", "memory://y"))
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
        await servers[2].command(
            "HSET", RECORD, "accepted", LATER, "value", newer.text(), "promised", 1
        )
        with pytest.raises(asynclock.ConfigurationError, match=r"the record \(epoch 7\) has"):
            await fleet.record()
    assert await kept(servers[:2]) == [(NodeSet(1, ABC), name) for name in ABC[:2]]


@in_virtual_time
async def test_a_node_may_be_given_by_its_url_in_each_call() -> None:
    """The record has names without a login, and no message shows the login."""
    servers, nodes = pushed("abcd")
    names = ("h:1", "h:2", "h:3", "h:4")
    await keep(servers, NodeSet(1, names), *names)
    removing = NodeSet(2, names, names[1:], OPEN)
    async with Fleet(*nodes, **SETTINGS) as fleet:
        with pytest.raises(asynclock.ConfigurationError) as caught:
            await fleet.remove("redis://user:secret@h:5")
        assert str(caught.value) == "h:5 is not one of {h:1, h:2, h:3, h:4}"
        for _ in range(2):
            state = await fleet.replace("redis://user:secret@h:1", "redis://user:secret@h:4/0")
            assert set_of(state) == removing
        assert set_of(await fleet.remove("redis://user:secret@h:1/0")) == removing


@in_virtual_time
async def test_a_node_is_added_no_moment_before_it_can_vote() -> None:
    """Not even when that is less than a second: its age is told in whole seconds."""
    said: list[str] = []
    _, nodes = pushed("abc")
    young = MemoryNode("d")
    place: Any = MemoryEndpoint("d", young, Way())
    async with Fleet(*nodes, **SETTINGS, progress=said.append) as fleet:
        await fleet.record()
        young.born_ago(TTL + 2)
        began = _clock.now()
        await fleet.add(place)
        assert _clock.now() - began == pytest.approx(quarantine(TTL) - TTL, abs=0.001)
    assert said == ["waiting 0 s until memory://d can vote"]
