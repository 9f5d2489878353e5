"""Guards of single nodes and links, each alone. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes.link import Link
from asynclock._nodes.pending_releases import PendingReleases
from asynclock._nodes.replies import READONLY, Failure
from asynclock._nodes.script import BATCH, Command
from asynclock._nodes.wakeup import Wakeups
from asynclock._primitives.lock import SCRIPT
from asynclock.events import NodeQuarantined
from asynclock.testing import run_virtual
from tests.engine.virtual_nodes import (
    KEY,
    NODE_TIMEOUT,
    Nodes,
    seconds_until,
    start,
    virtual,
    virtual_single,
)
from tests.nodes.by_hand import CLOCK, by_hand
from tests.waiting import in_virtual_time, until


@virtual
async def test_a_new_primary_renews_nothing_while_others_may_use_the_old_one(on: Nodes) -> None:
    nodes = on.locks._engine.multiplexer
    now, trust = _clock.now(), nodes.nodes[0].trust
    trust.votes_from, trust.renews_from = now + 20.0, now + 2.0
    assert not nodes.counts(0, now + 1.0, (0, 1))
    assert nodes.counts(0, now + 3.0, (0, 1))
    assert not nodes.counts(0, now + 3.0, (1, 2))
    assert nodes.counts(0, now + 21.0, (1, 2))


@virtual
async def test_a_node_whose_clock_is_ahead_takes_no_request_for_late(on: Nodes) -> None:
    on.nodes[2].jump_clock(30)
    async with on.connect() as locks, locks.lock("warm"):
        await asyncio.sleep(0.2)  # clocks are read ten times a second at most
        async with locks.lock("a"):
            await asyncio.sleep(0.01)
            assert [node.keys.get(KEY) is not None for node in on.nodes] == [True] * 3


@virtual
async def test_when_one_clock_jumped_the_others_are_asked(on: Nodes) -> None:
    """All at once: then it was ours that stood still, and leases end sooner."""
    lease = await on.locks.lock("a", renew=False).acquire()
    before = lease.remaining()
    for node in on.nodes:
        node.jump_clock(3)
    on.locks._engine.multiplexer.nodes[0].check_clock()
    await asyncio.sleep(0.01)
    assert lease.remaining() == pytest.approx(before - 3, abs=0.1)


@virtual_single
async def test_a_node_that_answers_again_is_asked_again_on_the_same_connection(on: Nodes) -> None:
    node = on.locks._engine.multiplexer.nodes[0]
    link = node.link
    on.nodes[0].freeze()
    assert await on.locks.inspect("a")
    assert node.state(_clock.now()) == "stalled"
    on.nodes[0].thaw()
    assert await seconds_until(lambda: node.state(_clock.now()) == "up") < 0.05
    assert node.link is link


@virtual_single
async def test_each_request_has_a_deadline_of_its_own(on: Nodes) -> None:
    link = on.locks._engine.multiplexer.nodes[0].link
    assert link is not None
    on.nodes[0].freeze()
    began = _clock.now()
    first = start(link.ask(Command.plain("TIME")))
    await asyncio.sleep(NODE_TIMEOUT / 2)
    second = start(link.ask(Command.plain("TIME")))
    async with asyncio.timeout(5 * NODE_TIMEOUT):
        assert isinstance(await first, Failure)
        assert _clock.now() - began == pytest.approx(NODE_TIMEOUT, abs=0.01)
        assert isinstance(await second, Failure)
        assert _clock.now() - began == pytest.approx(1.5 * NODE_TIMEOUT, abs=0.01)


@virtual_single
async def test_a_push_that_was_lost_with_its_connection_is_not_waited_for(on: Nodes) -> None:
    await on.ghost()
    waiting = start(on.locks.lock("a").acquire())
    await until(lambda: on.locks.statistics().refused >= 2)
    on.nodes[0].cut()
    await on.nodes[0].command("DEL", KEY)
    assert await seconds_until(waiting.done) < 0.1


@virtual_single
async def test_a_release_that_ran_before_its_acquire_is_repeated(on: Nodes) -> None:
    """The acquire met a server without its script, which another client then loaded."""
    (node,) = on.nodes
    node.forget_scripts()
    on.slow(0.1)
    asking = start(on.locks.lock("a").acquire())
    await asyncio.sleep(0.05)
    asking.cancel()  # the release follows 0.05 s behind
    await asyncio.sleep(0.075)
    assert node.keys.get(KEY) is None
    await node.command("SCRIPT", "LOAD", SCRIPT.source)
    await asyncio.sleep(0.5)
    assert node.keys.get(KEY + b":#fence") is not None
    assert node.keys.get(KEY) is None


def test_an_old_push_is_no_new_one() -> None:
    async def scenario() -> None:
        wakeups = Wakeups(3, 2)
        watch = wakeups.watch(("a",))
        wakeups.wake("a")
        assert await watch.wait(1.0)
        watch.reset()
        assert not await watch.wait(1.0)

    run_virtual(scenario())


@pytest.mark.parametrize("connections", [1, 4])
def test_a_release_is_repeated_ever_more_rarely(connections: int) -> None:
    """By one schedule, however many connections have broken meanwhile."""

    async def scenario() -> int:
        times = 0

        def send(_release: Command, sink: Any) -> None:
            nonlocal times
            times += 1
            asyncio.get_running_loop().call_soon(sink.on_reply, 0, Failure("no answer"))

        pending = PendingReleases(1.0, send)
        release = Command.release(SCRIPT, ("a", "b"), "me", 0.0, _clock.now() + 600)
        for _ in range(connections):
            pending.keep(release)
            pending.resend()
            await asyncio.sleep(0.1)
        await asyncio.sleep(60)
        return times

    assert 6 <= run_virtual(scenario()) <= 12


class Owner:
    """Keeps what a link says of its connection."""

    def __init__(self) -> None:
        self.end: Failure | None = None

    def on_clock(self, clock: float, sent: float, received: float) -> None: ...

    def on_push(self, push: list[Any]) -> None: ...

    def on_disconnect(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        self.end = end


class Wire(asyncio.Transport):
    """A connection whose other side is the test."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    def write(self, data: Any) -> None: ...

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.link.connection_lost, None)


async def ended_by(command: Command, reply: str) -> tuple[Any, Failure | None]:
    """What a link makes of this reply, and why the link ends."""
    owner = Owner()
    link = Link(owner, 1.0)
    link.connection_made(Wire(link))
    answer = link.ask(command)
    await asyncio.sleep(0)  # sent
    link.data_received(reply.encode())
    async with asyncio.timeout(5):
        await link.closed
    return await answer, owner.end


@pytest.mark.parametrize("words", ["READONLY You can't", "ERR Error running script: -READONLY"])
async def test_the_link_to_a_demoted_primary_ends(words: str) -> None:
    answer, end = await ended_by(Command.plain("SET", "a", "b"), f"-{words}\r\n")
    assert READONLY in answer.cause
    assert end is not None
    assert end.code == READONLY


@pytest.mark.parametrize("words", ["READONLY You can't", "@user_script: 9: -READONLY You can't"])
async def test_so_it_does_if_one_name_of_a_batch_was_refused(words: str) -> None:
    reply = f"*3\r\n:1\r\n*2\r\n:1\r\n-{words}\r\n:5\r\n"
    answer, end = await ended_by(Command.plain(BATCH), reply)
    assert answer[0] == 1  # each name of the batch takes its own reply
    assert end is not None
    assert end.code == READONLY


@in_virtual_time
async def test_a_node_whose_clock_jumped_is_told_of_as_one_that_does_not_vote(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with by_hand() as hand:
        await hand.comes()
        for clock in (CLOCK, CLOCK + 30):
            await asyncio.sleep(1)
            hand.node.on_clock(clock, _clock.now(), _clock.now())
        (event,) = (one for one in hand.events if isinstance(one, NodeQuarantined))
        assert event.seconds > 0
        assert "clock jumped" in event.cause
    (record,) = (one for one in caplog.records if "does not vote for" in one.message)
    assert record.levelname == "WARNING"


@pytest.mark.parametrize("key", ["asynclock:#set", ""])
@in_virtual_time
async def test_a_node_that_was_flushed_is_asked_for_the_record_that_it_lost(key: str) -> None:
    """It must be told the record before it votes again."""
    async with by_hand(record_key=key) as hand:
        link = await hand.comes()
        hand.node.on_push([b"invalidate", None])
        asked = [command.args[0] for command in link.commands]
        assert asked == (["CLIENT", "HMGET"] if key else [])
