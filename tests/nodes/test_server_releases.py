"""Which releases a node gets again, for how long, and what closing waits for.

The test opens and ends the connections, in virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from asynclock import _clock
from asynclock._nodes.backlog import ConnectBacklog
from asynclock._nodes.pending_releases import RETRY_MARGIN
from asynclock._nodes.replies import NOBODY, Failure
from asynclock._nodes.requests import TIME
from asynclock._nodes.script import Command, Word
from asynclock._primitives.lock import SCRIPT
from tests.nodes.by_hand import (
    NODE_TIMEOUT,
    Answers,
    Hand,
    HandLink,
    acquire,
    by_hand,
    release,
)
from tests.waiting import in_virtual_time

PING = Command.plain("PING")
GONE = Failure("gone")
LATE = 8 * NODE_TIMEOUT + RETRY_MARGIN
"""Seconds for which a server may take what a connection that broke had carried to it."""


async def asked(hand: Hand, owner: str) -> HandLink:
    """Let the first connection break while an acquire of `owner` has no reply; return the next."""
    link = await hand.comes()
    hand.node.ask(acquire(owner), NOBODY, 0)
    link.end(GONE, acquire(owner))
    return await hand.comes()


@pytest.mark.parametrize("waits", [False, True])
@in_virtual_time
async def test_a_release_is_repeated_while_its_acquire_may_still_arrive(*, waits: bool) -> None:
    """By the broken connection; `waits`: the release is made before the next one is open."""
    async with by_hand() as hand:
        link = await hand.comes()
        since = _clock.now()
        hand.node.ask(acquire("me"), NOBODY, 0)
        link.end(GONE, acquire("me"))
        ended = _clock.now()
        command, other = (release(name, since, since + 60) for name in ("me", "other"))
        if waits:
            hand.node.deliver(command, NOBODY, 0)
            hand.node.deliver(other, NOBODY, 0)
        link = await hand.comes()
        if not waits:
            hand.node.deliver(command, NOBODY, 0)
            hand.node.deliver(other, NOBODY, 0)
        moments, owners, replied = list[float](), list[Word](), 0
        while _clock.now() < ended + 2 * LATE:
            for sent, sink in link.sent[replied:]:
                replied += 1
                if sent.retry_until:
                    moments.append(_clock.now() - ended)
                    owners.append(sent.owner)
                    sink.on_reply(0, [1])
            await asyncio.sleep(0.01)
        assert owners.count("other") == 1
        assert owners.count("me") >= 3
        assert LATE <= moments[-1] <= LATE + 2 * RETRY_MARGIN + 0.05
        assert len(hand.node.pending) == 0


@in_virtual_time
async def test_kept_releases_go_before_the_acquires_that_waited_for_the_connection() -> None:
    """Otherwise these would be refused by the keys that are to go."""
    async with by_hand() as hand:
        link = await hand.comes()
        since = _clock.now()
        hand.node.ask(acquire("me"), NOBODY, 0)
        mine = release("me", since, since + 60)
        hand.node.deliver(mine, NOBODY, 0)
        link.end(GONE, acquire("me"), mine)
        hand.node.ask(acquire("next"), NOBODY, 0)
        link = await hand.comes()
        assert [(command.op, command.owner) for command in link.commands] == [
            ("release", "me"),
            ("acquire", "next"),
        ]


@in_virtual_time
async def test_what_a_connection_carried_counts_anew_from_each_break() -> None:
    """The first one's time ends while the second one's is running."""
    async with by_hand() as hand:
        link = await asked(hand, "me")
        await asyncio.sleep(LATE / 2)
        link.end(GONE, acquire("me"))
        await hand.comes()
        await asyncio.sleep(0.75 * LATE)
        assert "me" in hand.node.pending.late_acquires
        await asyncio.sleep(0.5 * LATE)
        assert not hand.node.pending.late_acquires


@pytest.mark.parametrize("permanent", [False, True])
@in_virtual_time
async def test_a_release_that_failed_is_repeated_unless_it_can_never_succeed(
    *, permanent: bool
) -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        since = _clock.now()
        command = release("me", since, since + 60)
        link.end(GONE, command)
        link = await hand.comes()
        for _ in range(2):
            _, sink = link.sent[-1]
            sink.on_reply(0, Failure("no", permanent=permanent))
            await asyncio.sleep(3 * NODE_TIMEOUT + RETRY_MARGIN)
        assert len(link.sent) == (1 if permanent else 3)
        assert hand.node.settled is permanent


@in_virtual_time
async def test_a_release_is_not_repeated_when_its_lease_is_over() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        since = _clock.now()
        ours = [release(name, since, since + seconds) for name, seconds in (("a", 1), ("b", 60))]
        link.end(GONE, *ours)
        await asyncio.sleep(2)
        assert [command.owner for command in (await hand.comes()).commands] == ["b"]


@in_virtual_time
async def test_the_answer_to_an_earlier_release_is_not_that_to_a_later_one() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        since, pending = _clock.now(), hand.node.pending
        command = release("me", since, since + 60)
        link.end(GONE, command)
        link = await hand.comes()
        _, older = link.sent[0]
        older.on_reply(0, [1])
        pending.keep(command)
        older.on_reply(0, [1])
        assert len(pending) == 1
        pending.clear()
        older.on_reply(0, Failure("no"))
        assert len(pending) == 0


@in_virtual_time
async def test_a_connection_that_comes_at_the_time_of_a_retry_repeats_a_release_once() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        since = _clock.now()
        link.end(GONE, release("me", since, since + 60))
        link = await hand.comes()
        link.sent[0][1].on_reply(0, Failure("no"))
        link.end(GONE)
        link = await hand.comes()
        await asyncio.sleep(NODE_TIMEOUT + 2 * RETRY_MARGIN)
        assert len(link.sent) == 1, "its answer is still awaited"


# ---- closing


@in_virtual_time
async def test_a_wait_that_is_cancelled_takes_no_answer_from_what_waits() -> None:
    """A manager is closed while a node still connects: its time limit ends the wait."""
    given_up: list[None] = []
    backlog, answers = ConnectBacklog(NODE_TIMEOUT, lambda: given_up.append(None)), Answers()
    backlog.add(PING, answers, 0)
    other = asyncio.create_task(backlog.wait_taken())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await backlog.wait_taken()
    assert backlog.take() == [(PING, answers, 0)]
    assert backlog.take() == []
    async with asyncio.timeout(1):
        await other
    await asyncio.sleep(2 * NODE_TIMEOUT)
    assert given_up == [], "nothing waits any more"


@in_virtual_time
async def test_a_node_is_settled_when_it_has_answered_every_release() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        assert hand.node.settled
        link.releasing = True
        assert not hand.node.settled
        link.releasing = False
        since = _clock.now()
        link.end(GONE)
        hand.node.deliver(release("me", since, since + 60), NOBODY, 0)
        assert not hand.node.settled, "it waits for the connection"
        link = await hand.comes()
        assert hand.node.settled, "the link knows of it"
        link.end(GONE)
        leave = Command(SCRIPT, ("asynclock:a",), ("leave", "me"))
        leave.asked_since, leave.retry_until = since, since + 60
        hand.node.deliver(leave, NOBODY, 0)
        assert not hand.node.settled, "nor has the ticket left"


@pytest.mark.parametrize("what", ["waits", "is kept", "is under way"])
@in_virtual_time
async def test_closing_waits_for_each_release_without_looking_all_the_time(what: str) -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        since, looks = _clock.now(), list[None]()

        class Looked(type(hand.node)):  # type: ignore[misc]
            @property
            def settled(self) -> bool:
                looks.append(None)
                assert len(looks) < 20
                return super().settled  # type: ignore[no-any-return]

        hand.node.__class__ = Looked
        ours = release("me", since, since + 60)
        if what == "is under way":
            link.releasing = True
        else:
            link.end(GONE, *([ours] if what == "is kept" else []))
            if what == "waits":
                hand.node.deliver(ours, NOBODY, 0)
        closing = asyncio.create_task(hand.node.settle())
        await asyncio.sleep(NODE_TIMEOUT / 2)
        assert not closing.done()
        if what != "is under way":
            link = await hand.comes()
        await asyncio.sleep(NODE_TIMEOUT / 2)
        link.releasing = False
        for _, sink in link.sent:
            sink.on_reply(0, [b"1", b"1"])
        await asyncio.sleep(0.01)
        if not closing.done():  # it asks for what is answered after all releases
            assert link.commands[-1] is TIME
            link.sent[-1][1].on_reply(0, [b"1", b"1"])
        async with asyncio.timeout(NODE_TIMEOUT):
            await closing
