"""One attempt at one name: which replies count, and what is sent to clean up. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from asynclock import _clock
from asynclock._engine.attempt import Attempt
from asynclock._engine.ticket import Ticket
from asynclock._nodes.link import LATE_TIMER_FACTOR
from tests.engine.attempts import AWAY, OOM, SLOT, SPEC, STARTED, TTL, around, begin
from tests.waiting import in_virtual_time


@in_virtual_time
async def test_a_quorum_of_equal_fences_wins_and_leaves_nothing_to_clean_up() -> None:
    made = await begin()
    made.grant(0)
    made.grant(2)
    assert await made.won()
    assert made.peers.delivered == []
    assert not made.context.undos


@in_virtual_time
async def test_a_request_goes_behind_what_the_tick_has_collected_and_is_written_if_alone() -> None:
    assert (await begin()).peers.steps == ["flush after 0", "write"]


@in_virtual_time
async def test_a_vote_that_is_won_too_late_is_given_back() -> None:
    made = await begin()
    await asyncio.sleep(TTL)
    made.grant(0)
    made.grant(1)
    assert not await made.won()
    assert made.peers.delivered == [("release", "me", [0, 1, 2])]


@in_virtual_time
async def test_a_vote_that_is_won_while_the_manager_closes_is_lost() -> None:
    """`close` takes each vote under way out and abandons it."""
    made = await begin()
    made.grant(0)
    made.grant(1)
    ((_, abandon),) = made.context.undos.items()
    made.context.undos.clear()
    abandon()
    assert made.peers.delivered == [("release", "me", [0, 1, 2]), ("leave", "me", [0, 1, 2])]
    assert not await made.won()


@in_virtual_time
async def test_a_cancelled_attempt_gives_up_the_name_and_its_place() -> None:
    for waits, places in ((SPEC.waits, [("leave", "me", [0, 1, 2])]), ((), [])):
        made = await begin(waits=waits)
        made.refuse(1)
        made.deciding.cancel()
        await asyncio.wait((made.deciding,))
        assert made.deciding.cancelled()
        assert made.peers.delivered == [("release", "me", [0, 2]), *places]
        assert not made.context.undos


@in_virtual_time
async def test_the_ticket_of_an_earlier_attempt_is_left_to_the_caller() -> None:
    made = await begin(ticket=Ticket(SPEC, "first", 0.0))
    made.deciding.cancel()
    await asyncio.wait((made.deciding,))
    assert made.peers.delivered == [("release", "me", [0, 1, 2])]


@in_virtual_time
async def test_an_attempt_without_enough_nodes_asks_nobody_and_starves_nobody() -> None:
    made = await begin(AWAY, STARTED)
    assert not made.deciding.done(), "other tasks get their chance before the next attempt"
    assert not await made.won()
    assert made.peers.delivered == []
    assert [len(node.asked) for node in made.peers.nodes] == [0, 0, 0]
    assert made.attempt.outage
    assert made.attempt.failures == {0: AWAY, 1: STARTED}


@in_virtual_time
async def test_a_lost_attempt_waits_at_the_nodes_that_have_its_ticket() -> None:
    made = await begin()
    made.refuse(0, number=5)
    made.grant(1)
    made.refuse(2, number=8)
    assert not await made.won()
    ticket = made.attempt.ticket
    assert ticket is not None
    assert (ticket.id, ticket.asked, ticket.number) == ("me", {0, 1, 2}, 8)
    assert ticket.unsettled
    assert made.attempt.queued(0)
    assert not made.attempt.queued(1)
    ((kind, owner, to),) = made.peers.delivered
    assert (kind, owner, to) == ("release", "me", [1])
    assert made.peers.commands[0].args[2:] == ticket.place(), "it goes on waiting there"
    made.peers.sinks[0].on_reply(1, [1, b"me", 1 << 50])
    assert made.peers.counted == [(ticket.key, 1)]
    assert made.peers.woken == [], "that node alone is no reason to ask again"


@pytest.mark.parametrize("ranks", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_a_waiter_is_as_far_ahead_as_the_node_where_the_fewest_go_first(
    ranks: tuple[int, int, int],
) -> None:
    @in_virtual_time
    async def test() -> None:
        made = await begin(size=5)
        made.refuse(3, number=0)  # it has no ticket there
        for index, rank in enumerate(ranks):
            made.refuse(index, rank=rank)
        assert not await made.won()
        assert made.attempt.ticket is not None
        assert made.attempt.ticket.rank == 1

    test()


@in_virtual_time
async def test_later_attempts_note_where_the_ticket_may_be() -> None:
    ticket = Ticket(SPEC, "first", 0.0)
    ticket.asked.add(2)
    made = await begin(None, None, AWAY, ticket=ticket)
    assert ticket.asked == {0, 1, 2}
    assert [command.args[6:] for command in made.peers.nodes[0].asked] == [ticket.words()]
    made.deciding.cancel()


@in_virtual_time
async def test_a_number_that_too_few_nodes_named_is_not_settled_on() -> None:
    made = await begin()
    made.refuse(0, number=5)
    made.attempt.on_reply(1, AWAY)
    made.attempt.on_reply(2, AWAY)
    assert not await made.won()
    assert made.attempt.ticket is not None
    assert (made.attempt.ticket.number, made.attempt.ticket.unsettled) == (0, False)


@in_virtual_time
async def test_a_node_that_granted_ahead_of_waiters_is_asked_for_a_number() -> None:
    """In a turn that was lost: that node has no ticket, and the others alone decide no order."""
    made = await begin(barge=True)
    made.grant(0)
    made.refuse(1)
    made.refuse(2)
    assert not await made.won()
    assert made.attempt.ticket is not None
    assert (made.attempt.ticket.number, made.attempt.ticket.unsettled) == (0, True)
    assert made.peers.nodes[0].asked[0].args[-3:] == ("me", 0, 1)


@in_virtual_time
async def test_a_won_vote_takes_its_ticket_back_where_it_waits() -> None:
    """Also a node whose reply comes later; there the ticket would keep others out."""
    ticket = Ticket(SPEC, "first", 0.0)
    made = await begin(ticket=ticket)
    made.refuse(0)
    made.grant(1)
    made.grant(2)
    assert await made.won()
    assert made.peers.delivered == [("leave", "first", [0])]
    made = await begin(AWAY, ticket=Ticket(SPEC, "first", 0.0))
    made.attempt.ticket.asked.add(0)  # type: ignore[union-attr]
    made.grant(1)
    made.grant(2)
    assert await made.won()
    assert made.peers.delivered == [("leave", "first", [0])]
    for late in ([0, 9000, b"x", 5, 0, 0, 1 << 50], AWAY):
        made = await begin()
        made.grant(1)
        made.grant(2)
        assert await made.won()
        assert made.peers.delivered == []
        made.attempt.on_reply(0, late)
        assert made.peers.delivered == [("leave", "me", [0])]


@in_virtual_time
async def test_at_the_limit_all_that_have_not_replied_count_as_failed_for_good() -> None:
    made = await begin(limit=0.5)
    made.peers.nodes[1].lack = OOM
    began = _clock.now()
    made.grant(0)
    assert not await made.won()
    assert _clock.now() - began == pytest.approx(0.5)
    assert made.attempt.cut
    assert made.attempt.failures[1] is OOM, "the node's last answer says more"
    before = list(made.peers.delivered)
    made.grant(1)
    made.grant(2)
    made.refuse(1)
    assert list(made.attempt.ballot.claims) == [0]
    assert made.attempt.refusals == []
    assert made.peers.delivered == before


@in_virtual_time
async def test_a_fence_that_is_written_back_counts_once_it_is_taken() -> None:
    for replies, won in (
        (([1, 9, 0],), True),
        (([0, 12, 0],), False),
        ((AWAY, [1, 9, 0]), False),
        (([0, 12, 0], [1, 9, 0]), False),
    ):
        made = await begin()
        made.grant(0, 7)
        made.grant(1, 9)
        assert [command.args[:3] for command in made.peers.nodes[0].asked[1:]] == [
            ("raise", "me", 9)
        ]
        assert made.peers.nodes[0].asked[1].args[-1] == 5000
        assert made.context.counts.write_backs == 1
        made.attempt.on_reply(2, AWAY)
        for reply in replies:
            made.attempt.on_raise_reply(0, reply)
        assert await made.won() is won
        assert (0 in made.attempt.ballot.claims) is won
        assert (0 in made.attempt.failures) is (AWAY in replies)
        assert len(made.peers.nodes[1].asked) == 1


@in_virtual_time
async def test_each_node_with_a_lower_fence_is_told_the_agreed_one_once() -> None:
    made = await begin()
    for index, fence in enumerate((7, 9, 8)):
        made.grant(index, fence)
    raises = [node.asked[1:] for node in made.peers.nodes]
    assert [len(one) for one in raises] == [1, 0, 1]
    made.attempt.on_raise_reply(2, [1, 8, 0])
    assert await made.won()


@in_virtual_time
async def test_a_node_that_has_not_replied_yet_is_told_of_the_end_of_a_wait_later() -> None:
    """Before its reply, it may not have the ticket yet."""
    made = await begin(size=5)
    made.refuse(0)
    for index in (1, 2, 3):
        made.grant(index)
    assert await made.won()
    assert made.peers.delivered == [("leave", "me", [0])]
    made.refuse(4)
    assert made.peers.delivered[1:] == [("leave", "me", [4])]


@in_virtual_time
async def test_a_request_of_a_batch_goes_on_with_what_its_nodes_have_replied() -> None:
    _, context = around()
    attempt = Attempt(context, SPEC, TTL, None, SPEC.waits, "me")
    verdict = asyncio.get_running_loop().create_future()
    attempt.take_over(verdict, [0, 1], {2: AWAY}, {0: 7})
    assert attempt.failures == {2: AWAY}
    attempt.on_reply(0, AWAY)  # it has granted
    assert not verdict.done()
    attempt.on_reply(1, [1, 7, b"", 1 << 50])
    assert verdict.done()
    assert attempt.conclude()


@in_virtual_time
async def test_a_request_of_a_batch_that_nobody_can_take_has_its_verdict() -> None:
    peers, context = around(AWAY, AWAY)
    attempt = Attempt(context, SPEC, TTL, None, SPEC.waits, "me")
    verdict = asyncio.get_running_loop().create_future()
    attempt.take_over(verdict, [], {}, {})
    attempt.ask(armed=False)
    assert verdict.done()
    assert not attempt.conclude()
    assert peers.delivered == []


@in_virtual_time
async def test_what_a_node_cannot_do_is_noted_until_it_can() -> None:
    """A reply that was lost with its connection says nothing about the node."""
    made = await begin()
    node = made.peers.nodes[0]
    made.attempt.on_reply(0, AWAY)
    assert node.lack is None
    made = await begin()
    node = made.peers.nodes[0]
    made.attempt.on_reply(0, OOM)
    assert node.lack is OOM
    made.refuse(0)  # late, and it does not count
    assert node.lack is None
    assert made.attempt.failures == {0: OOM}
    made.deciding.cancel()


@in_virtual_time
async def test_a_reply_that_a_guard_or_the_node_discarded_is_a_failure() -> None:
    made = await begin()
    made.attempt.on_reply(0, [-1, 1 << 50])
    made.peers.nodes[1].trust.votes_from = _clock.now() + 1
    made.grant(1)
    assert not await made.won()
    assert "too late" in made.attempt.causes()["a"]
    assert "guard" in made.attempt.causes()["b"]
    assert made.attempt.missing == 2


@in_virtual_time
async def test_a_grant_tells_whether_others_wait() -> None:
    """With several slots, the waiter that the node woke may be ours."""
    for spec, woken in ((SPEC, []), (SLOT, [(SPEC.ticket_key("other"), 0)])):
        made = await begin(spec=spec)
        made.grant(0, waiter=b"other")
        made.grant(1)
        assert await made.won()
        assert made.attempt.others
        assert made.peers.woken == woken
    made = await begin()
    made.grant(0)
    made.grant(1)
    assert await made.won()
    assert not made.attempt.others


@in_virtual_time
async def test_a_release_after_a_lost_vote_is_sent_again_until_the_lease_would_be_over() -> None:
    made = await begin()
    since = _clock.now()
    await asyncio.sleep(3.0)
    for index in range(3):
        made.attempt.on_reply(index, AWAY)
    assert not await made.won()
    (release,) = made.peers.commands
    assert release.asked_since == since
    assert release.retry_until == pytest.approx(since + 3.0 + TTL)


@in_virtual_time
async def test_each_clean_up_says_since_when_a_node_may_have_what_it_removes() -> None:
    """Nodes that were first asked later, after a restart, can't have it."""
    made, began = await begin(), _clock.now()
    await asyncio.sleep(1.0)
    made.deciding.cancel()
    await asyncio.wait((made.deciding,))
    assert [one.asked_since for one in made.peers.commands] == [began, began]
    made = await begin(ticket=Ticket(SPEC, "first", 5.0))
    made.refuse(0)
    made.grant(1)
    made.grant(2)
    assert await made.won()
    assert [(one.args[1], one.asked_since) for one in made.peers.commands] == [("first", 5.0)]


@in_virtual_time
async def test_an_answer_to_a_fence_that_comes_after_the_limit_changes_nothing() -> None:
    made = await begin(limit=0.5)
    made.grant(0, 7)
    made.grant(1, 9)
    assert not await made.won()
    before = dict(made.attempt.ballot.claims), dict(made.attempt.failures)
    made.attempt.on_raise_reply(0, [1, 9, 0])
    made.attempt.on_raise_reply(0, AWAY)
    assert (made.attempt.ballot.claims, made.attempt.failures) == before


@in_virtual_time
async def test_a_node_that_refused_without_a_number_keeps_no_ticket() -> None:
    made = await begin()
    made.refuse(0, number=0)
    assert not made.attempt.queued(0)
    assert made.attempt.votes() == {"a": "refused", "b": "open", "c": "open"}
    made.deciding.cancel()


@in_virtual_time
async def test_a_request_is_too_late_a_little_after_its_node_timeout() -> None:
    peers, context = around()
    asked: list[float] = []

    def not_after(until: float) -> int:
        asked.append(until)
        return 1 << 50

    peers.not_after = not_after  # type: ignore[method-assign,assignment]
    attempt = Attempt(context, SPEC, TTL, None, SPEC.waits, "me")
    attempt.ask(armed=False)
    ((until,), (command,)) = asked, peers.nodes[0].asked
    assert until == attempt.started + LATE_TIMER_FACTOR * 1.0
    assert command.args == ("acquire", "me", 10_000, 0, 1 << 50, 5000, *SPEC.waits)
    assert command.give_up_at == 0.0
