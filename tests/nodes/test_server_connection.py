"""How a node keeps its connection, what it makes of the ends of connections, and what it says then.

The test opens and ends the connections, in virtual time.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.heartbeat import FIRST_REPLICA_RECHECK
from asynclock._nodes.replies import NO_TRUST, NOBODY, NOT_REDIS, READONLY, Failure
from asynclock._nodes.requests import TIME
from asynclock._nodes.script import Command
from asynclock._nodes.server import CONNECTION_INHERITED, LEFT, LONGEST_DIAL
from asynclock._rules.trust import Facts
from asynclock.events import NodeDown, NodeQuarantined, NodeUp
from tests.nodes.by_hand import CLOCK, MAX_TTL, NODE_TIMEOUT, OLD, Answers, by_hand, release
from tests.waiting import in_virtual_time, until

PING = Command.plain("PING")
REPLICA = replace(OLD, role="slave")
REFUSED = ConnectionRefusedError("refused")


def failed(code: str) -> HandshakeError:
    return HandshakeError(Failure("wrong", permanent=True, code=code))


# ---- attempts


@in_virtual_time
async def test_an_attempt_may_take_longer_after_each_that_failed_up_to_a_limit() -> None:
    async with by_hand() as hand:
        await hand.fails(REFUSED, times=5)
        await asyncio.sleep(1)
        assert hand.limits == [NODE_TIMEOUT, 0.5, 1.0, *[LONGEST_DIAL] * 3]
        link = await hand.comes()
        link.end(Failure("gone"))
        await asyncio.sleep(0.01)
        assert hand.limits[6:] == [NODE_TIMEOUT], "after a success it begins anew"


@in_virtual_time
async def test_pauses_between_attempts_grow_up_to_a_node_timeout_and_vary() -> None:
    for chance in (0.0, 1.0):
        async with by_hand() as hand:
            hand.node.random = lambda chance=chance: chance  # type: ignore[misc]
            moments: list[float] = []
            hand.before_handshake_ends = lambda: moments.append(_clock.now())  # noqa: B023
            await hand.fails(REFUSED, times=9)
            pauses = [after - one for one, after in pairwise(moments)]
        assert pauses[0] == pytest.approx(0.02 * (1 + chance) / 2, abs=0.001)
        assert pauses == sorted(pauses)
        assert pauses[-1] == pytest.approx(NODE_TIMEOUT * (1 + chance) / 2, abs=0.001)


@in_virtual_time
async def test_a_node_that_was_away_for_long_is_still_tried() -> None:
    async with by_hand() as hand:
        await hand.fails(REFUSED, times=1500)
        await hand.comes()
        assert hand.node.state(_clock.now()) == "up"


@in_virtual_time
async def test_a_server_that_stays_a_replica_is_asked_for_its_role_ever_more_rarely() -> None:
    async with by_hand() as hand:
        hand.node.random = lambda: 1.0
        moments: list[float] = []
        hand.before_handshake_ends = lambda: moments.append(_clock.now())
        for facts in (*[REPLICA] * 4, OLD, REPLICA, REPLICA):
            link = await hand.comes(facts)
            if facts is OLD:
                link.end(Failure("gone"))
            await until(lambda: hand.node.link is None, every=0.001)
        pauses = [after - one for one, after in pairwise(moments)]
        first = FIRST_REPLICA_RECHECK
        assert pauses == pytest.approx([first, 2 * first, 4 * first, 8 * first, 0, first], abs=0.01)


@pytest.mark.parametrize(
    ("code", "passes"),
    [(NOT_REDIS, True), (NO_TRUST, True), (READONLY, True), ("WRONGPASS", False)],
)
@in_virtual_time
async def test_what_a_person_must_put_right_is_said_unless_it_worked_before(
    code: str, *, passes: bool
) -> None:
    """A proxy gets a new certificate; a password that is wrong stays wrong."""
    async with by_hand() as hand:
        permanent = []
        for met in (False, True):
            await hand.fails(failed(code))
            answers = Answers()
            hand.node.ask(PING, answers, 0)
            permanent.append(answers.found[0].permanent)
            if not met:
                (await hand.comes()).end(Failure("gone"))
        assert permanent == [True, not passes]


@in_virtual_time
async def test_a_clock_that_a_failed_attempt_read_is_not_that_of_the_next_one() -> None:
    """Another machine may have answered under this address."""
    async with by_hand() as hand:
        now = _clock.now()
        hand.before_handshake_ends = lambda: hand.node.on_clock(CLOCK, now, now + 0.01)
        await hand.fails(REFUSED)
        hand.before_handshake_ends = lambda: None
        await hand.comes()
        assert hand.node.trust.offset is None
        assert hand.node.round_trip is None


@in_virtual_time
async def test_the_clock_that_the_handshake_read_is_known_with_the_connection() -> None:
    async with by_hand() as hand:
        now = _clock.now()
        hand.before_handshake_ends = lambda: hand.node.on_clock(CLOCK, now, now + 0.01)
        await hand.comes()
        assert hand.node.trust.offset == pytest.approx(CLOCK - now - 0.005)
        assert hand.node.round_trip == pytest.approx(0.01)


# ---- a connection that is open


@in_virtual_time
async def test_a_node_says_when_it_can_be_used_again_and_forgets_what_was_wrong() -> None:
    async with by_hand() as hand:
        told: list[str] = []
        hand.node.on_state = lambda: told.append(hand.node.state(_clock.now()))
        await hand.fails(REFUSED)
        assert told == ["down"]
        assert "refused" in hand.node.cause(_clock.now())
        link = await hand.comes()
        assert told == ["down", "up"]
        hand.node.note(Failure("OOM command not allowed", code="OOM"))
        assert hand.node.cause(_clock.now()) == "OOM command not allowed"
        link.end(Failure("gone"))
        assert (hand.node.state(_clock.now()), hand.node.cause(_clock.now())) == ("connecting", "")
        await hand.comes()
        assert (hand.node.state(_clock.now()), hand.node.cause(_clock.now())) == ("up", "")


@in_virtual_time
async def test_whoever_waits_is_woken_by_a_new_connection_but_the_first() -> None:
    async with by_hand() as hand:
        woken: list[str | None] = []
        hand.node.on_wake = woken.append
        link = await hand.comes()
        assert woken == []
        link.end(Failure("gone"))
        await hand.comes()
        assert woken == [None]


@pytest.mark.parametrize(("role", "said"), [("slave", "a replica"), ("sentinel", "a sentinel")])
@in_virtual_time
async def test_a_server_that_is_no_primary_is_of_no_use_until_it_is_one(
    role: str, said: str
) -> None:
    async with by_hand() as hand:
        answers = Answers()
        hand.node.ask(PING, answers, 0)
        link = await hand.comes(replace(OLD, role=role))
        assert answers.found == [Failure(f"it is {said}, not a primary", permanent=True)]
        assert link.commands == []
        assert hand.node.state(_clock.now()) == "rejected"
        assert said in hand.node.cause(_clock.now())
        assert hand.events == [], "it was never up, and needs no guard"
        await until(lambda: hand.node.link is not link, "it is asked again", every=0.001)
        await hand.comes(replace(OLD, role="master"))
        assert hand.node.rejected is None


@in_virtual_time
async def test_a_server_that_becomes_a_replica_on_an_open_connection_has_no_keys_of_its_own() -> (
    None
):
    """Made a primary again, it has what another server had."""
    async with by_hand() as hand:
        link = await hand.comes()
        link.end(Failure("it is no longer a primary", code=READONLY))
        await hand.comes()
        assert hand.node.votes_from > _clock.now() + MAX_TTL - 1


@pytest.mark.parametrize("guarded", [False, True])
@in_virtual_time
async def test_the_guards_are_those_of_the_settings(*, guarded: bool) -> None:
    young = Facts(run_id="young", uptime=3.0)
    for settings, barred in (
        ({"restart_guard": guarded}, guarded),
        ({"guard_first": guarded}, guarded),
        ({"disks_kept": not guarded}, guarded),
    ):
        async with by_hand(**settings) as hand:
            await hand.comes(replace(young, durable=True))
            assert (hand.node.votes_from > _clock.now()) is barred, settings
    async with by_hand(restart_guard=guarded) as hand:
        await hand.comes()
        hand.node.on_push([b"invalidate", None])
        assert (hand.node.votes_from > _clock.now()) is guarded
    async with by_hand(clock_guard=guarded) as hand:
        jumps: list[float] = []
        hand.node.on_jump = lambda _node, by: jumps.append(by)
        await hand.comes()
        now = _clock.now()
        hand.node.on_clock(CLOCK, now, now + 0.001)
        hand.node.on_clock(CLOCK + 5, now + 0.002, now + 0.003)
        assert (hand.node.votes_from > _clock.now()) is guarded
        assert [round(by) for by in jumps] == [5] * guarded


@in_virtual_time
async def test_a_push_wakes_for_each_key_and_odd_ones_harm_nobody() -> None:
    async with by_hand() as hand:
        woken: list[str | None] = []
        hand.node.on_wake = woken.append
        await hand.comes()
        for push in ([], [b"message", b"a"], [b"invalidate", [b"a", "é".encode(), b"\xff"]]):
            hand.node.on_push(list[Any](push))
        hand.node.on_push([b"invalidate", None])
        assert woken == ["a", "é", "\udcff", None]


@in_virtual_time
async def test_a_node_is_asked_for_its_time_unless_it_is_silent() -> None:
    async with by_hand() as hand:
        hand.node.check_clock()  # no connection yet
        link = await hand.comes()
        hand.node.check_clock()
        assert link.commands == [TIME]
        asked = _clock.now()
        await asyncio.sleep(0.1)
        link.sent[0][1].on_reply(0, [b"1700000000", b"500000"])
        offset = hand.node.trust.offset
        assert offset == pytest.approx(CLOCK + 0.5 - asked - 0.05), "between request and reply"
        link.stalled_since = _clock.now()
        hand.node.check_clock()
        assert len(link.sent) == 1
        assert hand.node.state(_clock.now()) == "stalled"
        assert hand.node.cause(_clock.now()) == "it does not answer in time"


# ---- its end


@in_virtual_time
async def test_a_request_waits_for_a_connection_that_broke_but_not_for_one_that_was_silent() -> (
    None
):
    for end, silent, state in (
        (Failure("reset"), False, "connecting"),
        (Failure("reset"), True, "down"),
        (Failure("wrong", permanent=True), False, "down"),
    ):
        async with by_hand() as hand:
            link = await hand.comes()
            link.stalled_since = _clock.now() if silent else 0.0
            link.end(end)
            assert hand.node.state(_clock.now()) == state
            answers = Answers()
            hand.node.ask(PING, answers, 0)
            assert answers.found == ([] if state == "connecting" else [end])


@in_virtual_time
async def test_the_end_of_an_older_connection_is_not_that_of_the_present_one() -> None:
    async with by_hand() as hand:
        older = await hand.comes()
        older.end(Failure("gone"))
        link = await hand.comes()
        older_link: Any = older
        hand.node.on_disconnect(older_link, Failure("gone"), [])
        assert hand.node.link is link


@in_virtual_time
async def test_leaving_is_no_outage_and_answers_all_that_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "asynclock.nodes")
    async with by_hand() as hand:
        link = await hand.comes()
        await hand.node.finish()
    assert link.causes == ["closed"]
    waiting = Answers()
    async with by_hand() as other:
        other.node.ask(PING, waiting, 0)
    assert waiting.found == [Failure(LEFT)]
    assert [type(event) for event in hand.events + other.events] == [NodeUp]
    assert not caplog.records


@in_virtual_time
async def test_a_task_that_is_cancelled_leaves_the_link_to_the_releases_of_others() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
    answers = Answers()
    hand.node.deliver(release("a", 0.0, 1.0), answers, 0)
    assert not link.causes
    assert len(link.sent) == 1
    link.end(Failure("gone"))
    hand.node.ask(PING, answers, 0)
    assert answers.found == [Failure(LEFT)]


@in_virtual_time
async def test_a_node_that_was_left_in_quarantine_is_not_back_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "asynclock.nodes")
    async with by_hand() as hand:
        await hand.comes(Facts(run_id="young", uptime=1.0))
    await asyncio.sleep(2 * MAX_TTL)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@in_virtual_time
async def test_a_replica_is_told_of_as_such_and_not_as_a_node_that_will_vote() -> None:
    async with by_hand() as hand:
        link = await hand.comes(Facts(run_id="young", uptime=1.0))
        link.end(Failure("gone"))
        await hand.comes(Facts(run_id="young", uptime=1.0, role="slave"))
    assert [type(event) for event in hand.events] == [NodeQuarantined, NodeUp]


@in_virtual_time
async def test_a_node_that_is_closed_does_not_connect_again() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        await hand.node.finish()
        assert link.causes == ["closed"]
        await asyncio.sleep(1)
        assert len(hand.limits) == 1
    assert [type(event) for event in hand.events] == [NodeUp]


@in_virtual_time
async def test_a_forked_child_says_why_it_cannot_ask_and_never_connects() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        hand.node.forked()
        answers = Answers()
        hand.node.ask(PING, answers, 0)
        assert answers.found == [CONNECTION_INHERITED]
        assert hand.node.cause(_clock.now()) == CONNECTION_INHERITED.cause
        link.closed.set_result(None)
        await asyncio.sleep(1)
        assert len(hand.limits) == 1


# ---- what is logged


@in_virtual_time
async def test_what_a_server_refuses_is_said_once_until_that_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with by_hand() as hand:
        for refused in (("CONFIG",), ("CONFIG",), ("CONFIG", "INFO"), ()):
            link = await hand.comes(replace(OLD, refused=refused))
            link.end(Failure("gone"))
    texts = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert texts == ["here refuses CONFIG", "here refuses CONFIG", "here refuses INFO"]


@in_virtual_time
async def test_observers_hear_of_an_outage_each_time_its_cause_changes() -> None:
    async with by_hand() as hand:
        await hand.fails(REFUSED, times=3)
        await hand.fails(OSError("no route"), times=2)
        await hand.comes(Facts(run_id="young", uptime=1.0))
        await asyncio.sleep(0.01)
    kinds = [type(event) for event in hand.events]
    assert kinds == [NodeDown, NodeDown, NodeQuarantined, NodeUp]
    barred = hand.events[2]
    assert isinstance(barred, NodeQuarantined)
    assert barred.seconds == pytest.approx(MAX_TTL * 1.01, abs=0.1)


@in_virtual_time
async def test_a_record_that_cannot_be_read_ends_the_connection_unless_it_may_not_be() -> None:
    """A server without the right works without the comparison; a slow one is asked again."""
    async with by_hand(record_key="asynclock:#set") as hand:
        link = await hand.comes()
        hand.node.read_record()
        _, sink = link.sent.pop()
        sink.on_reply(0, Failure("NOPERM no right", permanent=True, code="NOPERM"))
        assert (link.causes, len(link.sent)) == ([], 1)
        link.stalled_since = _clock.now()
        await asyncio.sleep(1)
        sink.on_reply(0, Failure("no answer within 0.25 s"))
        assert [command.op for command in link.commands] == ["CLIENT", "CLIENT", "HMGET"]
        assert link.causes == []
        assert hand.node.trust.votes_from == _clock.now(), "older replies don't count"
        link.stalled_since = 0.0
        sink.on_reply(0, Failure("backlog"))
        assert link.causes == ["it doesn't answer whether it has kept its keys"]


@in_virtual_time
async def test_nothing_is_asked_of_a_server_whose_record_nobody_compares() -> None:
    async with by_hand() as hand:
        link = await hand.comes()
        hand.node.read_record()
        hand.node.poll_record()
        hand.node.on_push([b"invalidate", None])
        assert link.commands == []
        hand.node.ask(PING, NOBODY, 0)
        assert link.commands == [PING]
