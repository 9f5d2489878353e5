"""What becomes of a request to a node: sent, kept until it is back, or answered at once.

The test opens and ends the connections, in virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from asynclock import _clock
from asynclock._nodes.node import NOT_AFTER_GRACE
from asynclock._nodes.pending_releases import RETRY_MARGIN
from asynclock._nodes.replies import NOBODY, Failure
from asynclock._nodes.requests import FORGOT
from asynclock._nodes.script import Command
from asynclock._primitives.lock import SCRIPT
from asynclock._rules.trust import Facts
from tests.nodes.by_hand import (
    CLOCK,
    NODE_TIMEOUT,
    Answers,
    acquire,
    by_hand,
    release,
)
from tests.waiting import in_virtual_time

PING, TIME = Command.plain("PING"), Command.plain("TIME")
GONE = Failure("gone")
LATE = 8 * NODE_TIMEOUT + RETRY_MARGIN
"""Seconds for which a server may take what a connection that broke had carried to it."""


# ---- while the node connects


@in_virtual_time
async def test_requests_wait_in_order_for_the_first_connection() -> None:
    async with by_hand() as hand:
        answers = Answers()
        for command in (PING, TIME):
            hand.node.ask(command, answers, 0)
        link = await hand.comes()
        assert link.commands == [PING, TIME]
        assert answers.found == []
        await asyncio.sleep(10 * NODE_TIMEOUT)
        assert hand.node.state(_clock.now()) == "up", "nobody gives up what has been sent"


@in_virtual_time
async def test_requests_wait_for_a_node_timeout_and_later_ones_not_at_all() -> None:
    async with by_hand() as hand:
        began, first, second = _clock.now(), Answers(), Answers()
        hand.node.ask(PING, first, 0)
        await asyncio.sleep(NODE_TIMEOUT / 2)
        hand.node.ask(PING, second, 0)
        await first.first()
        assert _clock.now() - began == pytest.approx(NODE_TIMEOUT, abs=0.01)
        assert first.found == second.found == [Failure("no connection within 0.25 s")]
        third = Answers()
        hand.node.ask(PING, third, 0)
        assert third.found == first.found


@in_virtual_time
async def test_a_second_outage_is_given_up_as_soon_as_the_first() -> None:
    async with by_hand() as hand:
        for _ in range(2):
            answers, began = Answers(), _clock.now()
            hand.node.ask(PING, answers, 0)
            await answers.first()
            assert _clock.now() - began == pytest.approx(NODE_TIMEOUT, abs=0.01)
            (await hand.comes()).end(GONE)


@pytest.mark.parametrize("how", ["refused", "mute"])
@in_virtual_time
async def test_a_release_made_while_the_node_reconnects_is_sent_when_the_node_is_back(
    how: str,
) -> None:
    """Though the attempt to reconnect fails, or takes too long: else the key stays for its ttl."""
    async with by_hand() as hand:
        link = await hand.comes()
        since = _clock.now()
        link.end(GONE)
        await asyncio.sleep(0.01)
        later = _clock.now()
        ours = release("ours", since, later + 60)
        hand.node.deliver(ours, NOBODY, 0)
        hand.node.deliver(release("never asked for here", later, later + 60), NOBODY, 0)
        if how == "refused":
            await hand.fails(ConnectionRefusedError("refused"))
        else:
            await asyncio.sleep(2 * NODE_TIMEOUT)
        assert hand.node.state(_clock.now()) == "down"
        hand.node.deliver(release("nor this", later, later + 60), NOBODY, 0)
        link = await hand.comes()
        assert [(command.op, command.owner) for command in link.commands] == [("release", "ours")]


@in_virtual_time
async def test_a_change_chosen_before_the_node_forgot_does_not_wait_for_it() -> None:
    async with by_hand(restart_guard=False) as hand:
        (await hand.comes()).end(GONE)
        answers, change = [Answers(), Answers()], Command(SCRIPT, ("asynclock:a",), ("accept", 1))
        change.numbered_at = _clock.now()
        hand.node.ask(change, answers[0], 0)
        hand.node.ask(PING, answers[1], 0)
        await asyncio.sleep(0.01)
        link = await hand.comes(Facts(run_id="two", uptime=0.0))
        assert [one.found for one in answers] == [[FORGOT], []]
        hand.node.ask(change, answers[0], 0)
        assert answers[0].found == [FORGOT] * 2
        assert link.commands == [PING]


# ---- on a connection


@in_virtual_time
async def test_pushes_are_asked_for_where_the_server_has_them() -> None:
    for tracking in (True, False):
        async with by_hand() as hand:
            link = await hand.comes(Facts(run_id="one", uptime=1e6, tracking=tracking))
            hand.node.ask(PING, NOBODY, 0, arm=True)
            hand.node.ask(TIME, NOBODY, 0)
            words = [command.args for command in link.commands]
            assert words == [("CLIENT", "CACHING", "YES")] * tracking + [("PING",), ("TIME",)]


@pytest.mark.parametrize("way", ["asked", "in a batch", "waiting"])
@in_virtual_time
async def test_a_first_acquire_is_bounded_by_the_nodes_own_clock(way: str) -> None:
    """As late as its caller waits, and a little for the way; `CLOCK` was at the node, not here."""
    async with by_hand() as hand:
        now = _clock.now()
        hand.before_handshake_ends = lambda: hand.node.on_clock(CLOCK, now, now)
        command = acquire("me", give_up_at=now + 1.0)
        if way == "waiting":
            hand.node.ask(command, NOBODY, 0)
        link = await hand.comes()
        if way == "asked":
            hand.node.ask(command, NOBODY, 0)
        elif way == "in a batch":
            hand.node.send_batch(command, NOBODY, 0, now=True)
            assert link.now == [True]
        (sent,) = link.commands
        assert sent.args[4] == pytest.approx((CLOCK + 1.0 + NOT_AFTER_GRACE) * 1_000_000, abs=5)
        assert [*sent.args[:4], *sent.args[5:]] == [*command.args[:4], *command.args[5:]]


@in_virtual_time
async def test_several_names_go_in_one_command_only_where_each_of_them_is_safe() -> None:
    async with by_hand() as hand:
        assert not hand.node.takes_batches, "there is no connection"
        link = await hand.comes()
        assert hand.node.takes_batches
        link.takes_batches = False
        assert not hand.node.takes_batches, "each grant has to be acknowledged"
        link.takes_batches, link.stalled_since = True, _clock.now()
        assert not hand.node.takes_batches
        link.end(GONE, acquire("late"))
        await hand.comes()
        assert not hand.node.takes_batches, "a release may have to be kept"
        await asyncio.sleep(LATE + 0.2)
        assert hand.node.takes_batches


@in_virtual_time
async def test_a_silent_node_is_sent_the_releases_of_what_it_was_asked_for() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        link.stalled_since = _clock.now()
        await asyncio.sleep(0.5)
        asked, before, after = Answers(), Answers(), Answers()
        hand.node.ask(PING, asked, 0)
        assert asked.found == [Failure("no answer for 0.5 s")]
        ours = release("ours", link.stalled_since, _clock.now() + 60)
        hand.node.deliver(ours, before, 0)
        hand.node.deliver(release("x", link.stalled_since + 0.1, _clock.now() + 60), after, 0)
        assert link.commands == [ours]
        assert (before.found, after.found) == ([], asked.found)


@in_virtual_time
async def test_a_release_of_what_a_silent_node_was_not_asked_for_is_not_kept_for_it() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        link.stalled_since = silent = _clock.now()
        await asyncio.sleep(0.5)
        link.end(GONE)
        for since in (silent, silent + 0.1):
            hand.node.deliver(release(f"at {since}", since, since + 60), NOBODY, 0)
        assert [one.owner for one in (await hand.comes()).commands] == [f"at {silent}"]


@in_virtual_time
async def test_a_silent_node_says_for_how_long_it_has_not_answered() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        await asyncio.sleep(3)
        link.stalled_since = _clock.now()
        await asyncio.sleep(0.8)
        assert hand.node.silence == Failure("no answer for 0.8 s")


@in_virtual_time
async def test_a_node_without_a_vote_says_until_when() -> None:
    async with by_hand() as hand:
        await hand.comes(Facts(run_id="young", uptime=4.0))
        now = _clock.now()
        obstacle = hand.node.obstacle(now)
        assert obstacle is not None
        assert obstacle.votes_from == hand.node.votes_from > now
        assert obstacle.cause.endswith(f"; votes in {obstacle.votes_from - now:.1f} s")
        assert hand.node.state(now) == "quarantined"
        assert hand.node.cause(now) == obstacle.cause
        assert hand.node.obstacle(hand.node.votes_from) is None
        assert hand.node.state(hand.node.votes_from) == "up"


@in_virtual_time
async def test_an_error_instead_of_a_vote_is_shown_until_the_next_vote() -> None:
    full = Failure("OOM command not allowed", code="OOM")
    async with by_hand() as hand:
        hand.node.note(full)
        assert hand.node.lack is None, "there is no server that could have said it"
        await hand.comes()
        hand.node.note(full)
        assert hand.node.cause(_clock.now()) == full.cause
        hand.node.note(None)
        assert hand.node.cause(_clock.now()) == ""


@in_virtual_time
async def test_a_node_behind_others_says_itself_why_it_has_no_connection() -> None:
    """Sentinels know more than that it took too long."""
    async with by_hand() as hand:
        hand.node.late = lambda seconds: Failure(f"no Sentinel within {seconds:g} s")
        answers = Answers()
        hand.node.ask(PING, answers, 0)
        assert await answers.first() == Failure("no Sentinel within 0.25 s")


@in_virtual_time
async def test_all_that_is_queued_is_written_when_the_nodes_are_to_write() -> None:
    async with by_hand() as hand:
        hand.node.write()
        link = await hand.comes()
        hand.node.write()
        assert link.flushed == 1


@in_virtual_time
async def test_an_acquire_that_was_given_up_is_executed_a_moment_later_at_most() -> None:
    """A server that was paused may find it much later."""
    async with by_hand() as hand:
        link, now = await hand.comes(), _clock.now()
        hand.node.on_clock(CLOCK, now, now)
        hand.node.ask(acquire("me", give_up_at=now + NODE_TIMEOUT), Answers(), 0)
        (command,) = link.commands
        bound = command.args[4]
        assert isinstance(bound, int)
        assert CLOCK + NODE_TIMEOUT < bound / 1e6 < CLOCK + NODE_TIMEOUT + 0.1
        assert str(bound).encode() in command.packed
