"""How a node keeps its connection, what becomes of its requests, and which releases it gets again.

Nodes with servers in memory are in tests/nodes; here, the table opens and ends the connections.
"""

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes.node import NOT_AFTER_GRACE, RETRY_MARGIN, PendingReleases
from asynclock._nodes.server import CONNECTION_INHERITED, LEFT
from asynclock._nodes.wire import NOBODY, Command, Failure
from tests.tables.nodes.links import cases, command
from tests.tables.nodes.nodes import CLOCK, MAX_TTL, NODE_TIMEOUT, by_hand
from tests.waiting import in_virtual_time

LATE = 8 * NODE_TIMEOUT + RETRY_MARGIN
"""Seconds for which a server may take what a connection that broke had carried to it."""
INHERITED = CONNECTION_INHERITED.cause
REFUSED = "the handshake failed: ConnectionRefusedError: refused"
FORGOT = "it has forgotten its keys since this change began"
NO_CONNECTION = "no connection within node_timeout=0.25 s"

CONNECTIONS = cases(f"""
    an attempt may take longer after each that failed, up to a limit
      fails 5 refused
      wait 1
      limits? -> 0.25 0.5 1.0 2.0 2.0 2.0
      comes
      ends gone
      wait 0.01
      limits? -> 0.25 0.5 1.0 2.0 2.0 2.0 0.25
    a node that was away for long is still tried
      fails 1500 refused
      comes
      state? -> up
    a new connection forgets what was wrong, and wakes those that wait
      fails refused
      state? -> down
      cause? -> the handshake failed: ConnectionRefusedError: refused
      comes
      state? -> up
      vote OOM command not allowed
      cause? -> OOM command not allowed
      ends gone
      state? -> connecting
      cause?  ->
      comes -> wakes all
      state? -> up
      cause?  ->
    an error instead of a vote is shown until the next vote
      comes
      vote OOM command not allowed
      cause? -> OOM command not allowed
      vote
      cause?  ->
    a replica is of no use until it is a primary
      ask a
      comes role=slave -> a: ! it is a replica, not a primary (permanent)
      state? -> rejected
      cause? -> it is a replica, not a primary
      events?  ->
      wait 0.11 -> closes: it was a replica
      comes role=master -> wakes all
      state? -> quarantined
    a Sentinel is told as such
      ask a
      comes role=sentinel -> a: ! it is a sentinel, not a primary (permanent)
    what became a replica has no keys of its own when it is a primary again
      comes
      ends READONLY it is no longer a primary
      comes -> wakes all
      votes? -> 10.1
    a node is asked for its time unless it is silent
      check
      comes
      check -> sends TIME
      wait 0.1
      replies TIME = [b'1700000000', b'500000']
      check -> sends TIME
      replies TIME = ! no answer within 0.25 s
      silent
      check
      state? -> stalled
      cause? -> it does not answer in time
    the time that it was asked for shows that its clock jumped
      comes
      clock 0
      check -> sends TIME
      replies TIME = [b'1700000100', b'0'] -> jumps by 100
      state? -> quarantined
    pushes are asked for, also by what waits for the connection
      arm a
      comes -> sends a behind CLIENT CACHING YES
      ask a -> sends a
      arm a -> sends a behind CLIENT CACHING YES
    a push wakes for each key, and odd ones harm nobody
      comes
      push []
      push [b'message', b'a']
      push [b'invalidate', [b'a', b'\\xc3\\xa9', b'\\xff']] -> wakes a; wakes é; wakes \udcff
      push [b'invalidate', None] -> wakes all
    the end of a broken connection is waited for, that of a silent one is not
      comes
      ends reset
      state? -> connecting
      ask a
      comes -> sends a; wakes all
      silent
      ends reset
      state? -> down
      ask a -> a: ! reset
    nor is one that a person must put right
      comes
      ends permanent wrong
      state? -> down
      ask a -> a: ! wrong (permanent)
    a closed node does not connect again
      comes
      finish -> closes: closed
      wait 1
      limits? -> 0.25
      events? -> NodeUp
    a forked child says why it can't ask
      comes
      fork
      ask a -> a: ! {INHERITED}
      cause? -> {INHERITED}
    a node without a vote says until when
      comes run_id=young uptime=4
      state? -> quarantined
      votes? -> 8.1
      wait 8.2 -> sends TIME; sends TIME
      state? -> up
      cause?  ->
    observers hear of an outage each time its cause changes
      fails 3 refused
      fails 2 away
      comes run_id=young uptime=1
      events? -> NodeDown NodeDown NodeQuarantined NodeUp
    a replica is no node that will vote
      comes run_id=young uptime=1
      ends gone
      comes run_id=young uptime=1 role=slave
      events? -> NodeQuarantined NodeUp
    the record is read again, and a node that doesn't answer is left
      comes
      record -> sends CLIENT CACHING YES; sends HMGET #set accepted value name
      replies HMGET #set accepted value name = ! NOPERM permanent no right
      record -> sends CLIENT CACHING YES; sends HMGET #set accepted value name
      silent
      wait 1
      replies HMGET #set accepted value name = ! no answer within 0.25 s ->
        sends CLIENT CACHING YES; sends HMGET #set accepted value name
      votes? -> 0.0
      answers
      replies HMGET #set accepted value name = ! backlog ->
        closes: it doesn't answer whether it has kept its keys
    a flushed node is asked for the record that it lost
      comes
      push [b'invalidate', None] -> sends CLIENT CACHING YES; sends HMGET #set accepted value name;
        wakes all
""")
REQUESTS = cases(f"""
    requests wait in order for the first connection
      ask a
      ask b
      comes -> sends a; sends b
      wait 2.5
      state? -> up
    for a node timeout, and later ones not at all
      ask a
      wait 0.125
      ask b
      wait 0.12
      wait 0.01 -> a: ! {NO_CONNECTION}; b: ! {NO_CONNECTION}
      ask c -> c: ! {NO_CONNECTION}
    a second outage is given up as soon as the first
      comes
      ends gone
      ask a
      wait 0.24
      wait 0.02 -> a: ! {NO_CONNECTION}
    a change from before a node forgot does not wait for it
      comes
      wait 1
      ends gone
      ask accept 1
      ask b
      wait 0.01
      comes run_id=two uptime=0 -> accept 1: ! {FORGOT}; sends b; wakes all
      ask prepare 1 -> prepare 1: ! {FORGOT}
      ask accept 9 -> sends accept 9
    a silent node says so, and is sent the releases of what it was asked for
      comes
      wait 3
      silent
      wait 0.5
      ask a -> a: ! no answer within node_timeout=0.25 s
      deliver release ours asked 2 -> sends release ours
      deliver release late asked 3.1 -> release late: ! no answer within node_timeout=0.25 s
    what a silent node was not asked for is not kept for it
      comes
      silent
      wait 0.5
      ends gone
      deliver release ours asked 0 -> release ours: ! gone
      deliver release late asked 0.1 -> release late: ! gone
      comes -> sends release ours; wakes all
    all that is queued is written when the nodes are to write
      write
      comes
      write -> writes
    several names go in one command only where each is safe
      batches? -> False
      comes
      batches? -> True
      silent
      batches? -> False
      ends gone with acquire late
      comes -> wakes all
      batches? -> False
      wait {LATE + 0.2}
      batches? -> True
""")
RELEASES = cases(f"""
    a release made while the node reconnects is sent when it is back
      comes
      wait 1
      ends gone
      deliver release ours asked 0
      deliver release strange asked 1.01
      fails refused -> release ours: ! {REFUSED}; release strange: ! {REFUSED}
      deliver release strange asked 1.01 -> release strange: ! {REFUSED}
      comes -> sends release ours; wakes all
    also if the attempt to reconnect takes too long
      comes
      wait 1
      ends gone
      deliver release ours asked 0
      deliver release strange asked 1.01
      wait 0.5 -> release ours: ! {NO_CONNECTION}; release strange: ! {NO_CONNECTION}
      comes -> sends release ours; wakes all
    kept releases go before the acquires that waited
      comes
      ask acquire me -> sends acquire me
      deliver release me asked 0 -> sends release me
      ends gone with acquire me, release me asked 0
      ask acquire next
      comes -> sends release me; sends acquire next; wakes all
    a release that failed is repeated
      comes
      ends gone with release me asked 0
      comes -> sends release me; wakes all
      replies release me = ! no
      wait {NODE_TIMEOUT + RETRY_MARGIN + 0.01} -> sends release me
      replies release me = ! no
      wait {2 * NODE_TIMEOUT + RETRY_MARGIN + 0.01} -> sends release me
      settled? -> False
      replies release me = [1]
      settled? -> True
    unless it can never succeed
      comes
      ends gone with release me asked 0
      comes -> sends release me; wakes all
      replies release me = ! permanent no
      wait 3
      settled? -> True
    or its lease is over
      comes
      ends gone with release a asked 0 for 1, release b asked 0 for 60
      wait 2
      comes -> sends release b; wakes all
    or by a node's clock that was set back, is not over
      comes
      clock 0
      wait 0.2
      clock -5 -> jumps by -5
      ends gone with release a asked 0 for 1
      wait 5.5
      comes -> sends release a; wakes all
      ends gone
      wait 0.6
      comes -> wakes all
    a connection that comes at the time of a retry repeats it once
      comes
      ends gone with release me asked 0
      comes -> sends release me; wakes all
      replies release me = ! no
      ends gone
      comes -> sends release me; wakes all
      wait {NODE_TIMEOUT + 2 * RETRY_MARGIN}
    a retry without a connection is left to the next one
      comes
      ends gone with release me asked 0
      comes -> sends release me; wakes all
      replies release me = ! no
      ends gone
      wait {2 * NODE_TIMEOUT}
      comes -> sends release me; wakes all
    a release that is kept twice is repeated once
      comes
      ends gone with release me asked 0
      comes -> sends release me; wakes all
      replies release me = ! no
      ends gone with release me asked 0
      comes -> sends release me; wakes all
      replies release me = [1]
      wait {2 * NODE_TIMEOUT}
    a leave and a release of the same words are both kept
      comes
      ends gone with release me asked 0, leave me asked 0, release me asked 0
      kept? -> 2
      comes -> sends release me; sends leave me; wakes all
    a node is settled when it has answered every release
      comes
      settled? -> True
      ends gone
      deliver release me asked 0
      settled? -> False
      comes -> sends release me; wakes all
      settled? -> True
      ends gone
      deliver leave me asked 0
      settled? -> False
    the release of a lease that is over by now is not waited for
      comes
      ends gone with release me asked 0 for 1
      wait 2
      settle
    a task that is cancelled leaves the link to the releases of others
      comes
      deliver release a asked 0 -> sends release a
""")


@pytest.mark.parametrize("lines", CONNECTIONS.values(), ids=CONNECTIONS)
@in_virtual_time
async def test_a_connection(lines: tuple[str, ...]) -> None:
    key = "#set" if any("record" in line or "HMGET" in line for line in lines) else ""
    async with by_hand(record_key=key) as hand:
        await hand.play(lines)


@pytest.mark.parametrize("lines", {**REQUESTS, **RELEASES}.values(), ids=[*REQUESTS, *RELEASES])
@in_virtual_time
async def test_a_request(lines: tuple[str, ...]) -> None:
    async with by_hand(restart_guard=False) as hand:
        await hand.play(lines)


# ---- connecting
@pytest.mark.parametrize("chance", [0.0, 1.0])
@in_virtual_time
async def test_pauses_grow_up_to_a_limit_and_vary(chance: float) -> None:
    """Between attempts up to a node timeout."""
    part = (1 + chance) / 2
    async with by_hand() as hand:
        hand.node.random = lambda: chance
        await hand.fails("9 refused")
        pauses = [after - one for one, after in pairwise(hand.moments)]
        assert pauses == pytest.approx(
            [part * one for one in (0.02, 0.04, 0.08, 0.16, *[NODE_TIMEOUT] * 5)], abs=0.001
        )


@pytest.mark.parametrize("code", ["NOTREDIS", "NOTRUST", "READONLY", "WRONGPASS"])
@in_virtual_time
async def test_what_a_person_must_put_right_is_said_unless_it_worked_before(code: str) -> None:
    later = f"a: ! wrong (permanent {code})" if code == "WRONGPASS" else "a: ! wrong"
    async with by_hand() as hand:
        await hand.play(
            (
                f"fails {code}",
                f"ask a -> a: ! wrong (permanent {code})",
                "comes",
                "ends gone",
                f"fails {code}",
                f"ask a -> {later}",
            )
        )


@pytest.mark.parametrize("guarded", [False, True])
@in_virtual_time
async def test_the_guards_are_those_of_the_settings(*, guarded: bool) -> None:
    young = "run_id=young uptime=3"
    for settings, lines in (
        ({"restart_guard": guarded}, [f"comes {young}"]),
        ({"guard_first": guarded}, [f"comes {young}"]),
        ({"disks_kept": not guarded}, [f"comes {young} durable=YES"]),
        ({"restart_guard": guarded}, ["comes", "push [b'invalidate', None] -> wakes all"]),
        (
            {"clock_guard": guarded},
            ["comes", "clock 0", "wait 0.1", "clock 5" + " -> jumps by 5" * guarded],
        ),
    ):
        async with by_hand(**settings) as hand:
            await hand.play(tuple(lines))
            assert (hand.node.votes_from > _clock.now()) is guarded, settings


@pytest.mark.parametrize("fails", [False, True])
@in_virtual_time
async def test_the_clock_that_a_handshake_read_is_known_with_its_connection(*, fails: bool) -> None:
    """And not with that of the next attempt: another machine may answer under this address."""
    async with by_hand() as hand:
        now = _clock.now()
        hand.reading = CLOCK, now, now + 0.01
        if fails:
            await hand.fails("refused")
            hand.reading = None
        await hand.comes()
        offset = hand.node.trust.offset
        assert offset == (None if fails else pytest.approx(CLOCK - now - 0.005))
        assert hand.node.round_trip == (None if fails else pytest.approx(0.01))


@pytest.mark.parametrize("young", [False, True])
@in_virtual_time
async def test_leaving_is_no_outage_and_answers_all_that_waits(
    caplog: pytest.LogCaptureFixture, *, young: bool
) -> None:
    """A node that was left in quarantine is not back later."""
    caplog.set_level(logging.INFO, "asynclock.nodes")
    async with by_hand() as hand:
        await hand.comes("run_id=young uptime=1" if young else "")
        await hand.play(("finish -> closes: closed",))
    async with by_hand() as other:
        await other.play(("ask a",))
    assert other.heard == [f"a: ! {LEFT}"]
    await asyncio.sleep(2 * MAX_TTL)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * young
    await hand.play((f"ask a -> a: ! {LEFT}", "limits? -> 0.25"))


@pytest.mark.parametrize("way", ["asked", "in a batch", "waiting"])
@in_virtual_time
async def test_a_first_acquire_is_bounded_by_the_nodes_own_clock(way: str) -> None:
    """As late as its caller waits, and a little for the way; `CLOCK` was at the node, not here."""
    async with by_hand() as hand:
        now = _clock.now()
        hand.reading = CLOCK, now, now
        acquire = command("acquire me 10000 1 0 0")
        acquire.give_up_at = now + 1.0
        if way == "waiting":
            hand.node.ask(acquire, NOBODY, 0)
        await hand.comes()
        if way == "asked":
            hand.node.ask(acquire, NOBODY, 0)
        elif way == "in a batch":
            hand.node.send_batch(acquire, NOBODY, 0, write=True)
            assert hand.heard == ["at once sends acquire me"]
        bound = hand.last.args[4]
        assert bound == pytest.approx((CLOCK + 1.0 + NOT_AFTER_GRACE) * 1_000_000, abs=5)
        assert [*hand.last.args[:4], *hand.last.args[5:]] == ["acquire", "me", "10000", "1", "0"]
        assert str(bound).encode() in hand.last.packed
        assert (hand.last.give_up_at, hand.last.not_after(7).args[4]) == (0.0, 7)


# ---- releases
@in_virtual_time
async def test_the_answer_to_an_earlier_release_is_not_that_to_a_later_one() -> None:
    sinks: list[Any] = []

    def sends(_command: Command, sink: Any) -> bool:
        sinks.append(sink)
        return True

    pending = PendingReleases(1.0, sends)
    pending.keep(command("release me").resent(0.0, _clock.now() + 60))
    pending.resend()
    (older,) = sinks
    older.on_reply(0, [1])
    pending.keep(command("release me"))
    older.on_reply(0, [1])
    assert len(pending) == 1
    pending.clear()
    older.on_reply(0, Failure("no"))
    assert len(pending) == 0


@pytest.mark.parametrize("connections", [1, 4])
@in_virtual_time
async def test_a_release_is_repeated_ever_more_rarely_up_to_a_limit(connections: int) -> None:
    """By one schedule, however many connections have broken meanwhile."""
    moments, began = list[float](), _clock.now()

    def fails(_command: Command, sink: Any) -> bool:
        moments.append(_clock.now() - began)
        asyncio.get_running_loop().call_soon(sink.on_reply, 0, Failure("LOADING the data"))
        return True

    pending = PendingReleases(1.0, fails)
    for _ in range(connections):
        pending.keep(command("release me"))
        pending.resend()
        await asyncio.sleep(0.1)
    while len(pending):
        await asyncio.sleep(0.1)
    pauses = [after - one for one, after in pairwise(moments)]
    assert pauses[-5:] == pytest.approx([8.1] * 5, abs=0.001)
    if connections == 1:
        assert pauses[:3] == pytest.approx([1.1, 2.1, 4.1])
