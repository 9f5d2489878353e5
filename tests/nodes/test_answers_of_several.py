"""When the answers of several nodes or servers are enough, and when a quorum can vote."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes.gather import Gather
from asynclock._nodes.node import NodeSettings
from asynclock._nodes.poll import SILENT, poll, source_node
from asynclock._nodes.replies import Failure, Sink
from asynclock._nodes.script import Command
from asynclock._nodes.voting import barred, quarantined
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.nodes.by_hand import Answers
from tests.waiting import in_virtual_time, until

NO = Failure("no")
PING, TIME = Command.plain("PING"), Command.plain("TIME")


@pytest.mark.parametrize(
    ("replies", "done"),
    [
        (("yes", "yes"), True),
        (("yes", NO), False),
        (("yes", NO, "yes"), True),
        ((NO, NO), False),
        ((NO, NO, NO), True),
    ],
)
@in_virtual_time
async def test_a_majority_of_answers_is_enough_and_failures_are_none(
    replies: tuple[Any, ...], *, done: bool
) -> None:
    gather = Gather(3, 2)
    for index, reply in enumerate(replies):
        gather.on_reply(index, reply)
    assert gather.complete.done() is done
    assert gather.found == dict(enumerate(replies))


@in_virtual_time
async def test_the_others_get_some_time_once_enough_have_answered() -> None:
    for more, seconds in (((), 0.5), (("late",), 0.1)):
        gather, began = Gather(3, 2, 0.5), _clock.now()
        gather.on_reply(0, "yes")
        gather.on_reply(1, "yes")
        assert not gather.complete.done()
        await asyncio.sleep(0.1)
        for reply in more:
            gather.on_reply(2, reply)
        await gather.complete
        assert _clock.now() - began == pytest.approx(seconds, abs=0.001)
        await asyncio.sleep(1)
        gather.on_reply(2, "much later")


class Server:
    """Answers each question after some time; None: never."""

    def __init__(self, name: str, seconds: float | None) -> None:
        self.name, self.seconds = name, seconds

    def ask(self, command: Command, sink: Sink, index: int) -> None:
        if self.seconds is not None:
            answer = f"{self.name} {command.op!s}"
            asyncio.get_running_loop().call_later(self.seconds, sink.on_reply, index, answer)


@in_virtual_time
async def test_a_poll_waits_for_a_majority_and_only_a_little_for_the_rest() -> None:
    servers: list[Any] = [Server("a", 0.3), Server("b", None), Server("c", 0.1)]
    began = _clock.now()
    found = await poll(servers, (PING, TIME), 0.25)
    assert _clock.now() - began == pytest.approx(0.3 + 0.25, abs=0.001)
    assert found == [["a PING", "a TIME"], [SILENT, SILENT], ["c PING", "c TIME"]]
    servers[1].seconds = 0.4
    began = _clock.now()
    assert (await poll(servers, (PING,), 0.25))[1] == ["b PING"]
    assert _clock.now() - began == pytest.approx(0.4, abs=0.001)


@in_virtual_time
async def test_a_server_that_only_tells_of_others_needs_no_guard() -> None:
    """A Sentinel may have started a moment ago, and is no node of the fleet."""
    server = MemoryNode("a")
    settings = NodeSettings(
        0.25, 10.0, restart_guard=True, guard_first=True, clock_guard=True, record_key="a:#set"
    )
    node = source_node(MemoryEndpoint("a", server), settings)
    keeping = asyncio.create_task(node.keep())
    try:
        await until(lambda: node.link is not None)
        assert node.state(_clock.now()) == "up"
        assert node.settings.record_key == ""
        server.freeze()
        mute, began = Answers(), _clock.now()
        node.ask(PING, mute, 0)
        await until(lambda: mute.found, every=0.001)
        assert _clock.now() - began == pytest.approx(0.25, abs=0.01), "not the dial's limit"
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@in_virtual_time
async def test_a_server_that_only_tells_of_others_has_its_timeout_once_it_is_connected() -> None:
    """Attempts to connect get more time after each that failed."""
    server = MemoryNode("a")
    server.freeze()
    settings = NodeSettings(0.25, 10.0, restart_guard=True, guard_first=True, clock_guard=True)
    node = source_node(MemoryEndpoint("a", server), settings)
    keeping = asyncio.create_task(node.keep())
    try:
        await asyncio.sleep(5)
        assert "within 2 s" in node.cause(_clock.now())
        server.thaw()
        await until(lambda: node.link is not None)
        server.freeze()
        mute, began = Answers(), _clock.now()
        node.ask(PING, mute, 0)
        await until(lambda: mute.found, every=0.001)
        assert _clock.now() - began == pytest.approx(0.25, abs=0.01)
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@pytest.mark.parametrize(
    ("moments", "quorum", "seconds"),
    [
        ((0,), 1, 0),
        ((17,), 1, 7),
        ((17, 0, 0), 2, 0),
        ((17, 15, 0), 2, 5),
        ((12, 17, 15), 2, 5),
        ((9, 3, 15), 2, 0),
        ((17, 15, 0, 0, 0), 3, 0),
        ((17, 12, 15, 0, 0), 3, 2),
        ((17, 12, 15, 14, 0), 3, 4),
        ((17, 15, 0), 3, 7),
    ],
)
def test_a_quorum_votes_when_the_first_of_those_that_it_needs_may(
    moments: tuple[float, ...], quorum: int, seconds: float
) -> None:
    """Nodes without a guard count as voting: whether they answer is another question."""
    assert barred(len(moments), quorum, moments, 10.0) == seconds


@pytest.mark.parametrize(("failed", "seconds"), [((), 0), ((17,), 0), ((17, 15), 5)])
def test_nodes_that_have_not_failed_are_barred_by_nothing(
    failed: tuple[float, ...], seconds: float
) -> None:
    """An attempt knows only of the guards of nodes that failed it."""
    assert barred(3, 2, failed, 10.0) == seconds


def test_a_reply_that_a_guard_made_worthless_names_the_guard() -> None:
    obstacle = Failure("its clock jumped", votes_from=7.0)
    node: Any = SimpleNamespace(
        trust=SimpleNamespace(votes_from=7.0), obstacle=lambda _now: obstacle
    )
    assert quarantined(node) is obstacle
    node.obstacle = lambda _now: None  # the guard's time is over by now
    assert quarantined(node).votes_from == 7.0
